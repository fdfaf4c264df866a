"""What a student's function does to a folder, recorded in the sandbox: the same record as beside the student's code;
and a hostile one costs its own exercise only."""

import pytest
from grading import SANDBOXES, fresh_course, needs
from sides import Walled, sides

SETUP = """
from threeloops.lab import check
from threeloops.lab.checking.on_disk import on_disk, on_folders
from threeloops.training.checkpoint.crash import DiskFull, SyncFails
from threeloops.training.checkpoint.crash import check as load_all_states
from threeloops.training.checkpoint.crash.model.states import files_after


def program(folder, saved, function, contents):
    for data in contents:
        function(folder / "model", data)
        saved()
    return {"saves": len(contents)}


def load(folder):
    path = folder / "model"
    return path.read_bytes() if path.exists() else None
"""

RENAMES = """
import os


def f(path, data):
    with open(path.with_name("new"), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_name("new"), path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("wall")) as lab:
        yield lab


@pytest.fixture(params=("direct", *SANDBOXES))
def run(request, lab):
    with sides(lab, request.param, SETUP) as run:
        yield run


def test_the_record_is_explored_where_the_test_is(run):
    done = run(
        RENAMES,
        """
        seen = on_disk(program, f, [b"a" * 700, b"b" * 600], files={"model": b"old", "other": b"x", "empty": None})
        assert seen.result == {"saves": 2} and seen.error is None
        assert files_after(seen.record) == {"model": b"b" * 600, "other": b"x", "empty": None}
        assert [str(each) for each in seen.record.operations][-1] == "the save returned"
        report = load_all_states(seen.record, load, values=[b"old", b"a" * 700, b"b" * 600])
        assert report.ok and report.states > 10
        """,
    )
    assert done.ok, done


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_functions_that_a_cell_imported_are_recorded_too(lab, sandbox):
    needs(sandbox)
    student = RENAMES.replace("import os", "import os\nfrom os import fsync as settle").replace("os.fsync", "settle")
    side = Walled(lab, sandbox, SETUP, student)
    try:
        done = side.test(
            "seen = on_disk(program, f, [b'a' * 700], files={'model': b'old'})\n"
            "assert load_all_states(seen.record, load, values=[b'old', b'a' * 700]).ok"
        )
    finally:
        side.close()
    assert done.ok, done


def test_a_disk_that_fails_ends_the_record_and_its_error_is_returned(run):
    done = run(
        RENAMES,
        """
        for failure, number in ((DiskFull(100), 28), (SyncFails(), 5)):
            seen = on_disk(program, f, [b"a" * 700], files={"model": b"old"}, fail=failure)
            assert type(seen.error) is OSError and seen.error.errno == number, seen.error
            assert files_after(seen.record)["model"] == b"old" and seen.result is None
        """,
    )
    assert done.ok, done


def test_other_errors_are_raised(run):
    done = run("def f(path, data):\n    return {}[path.name]", "on_disk(program, f, [b'a'])")
    assert not done.ok and done.error == "KeyError" and "model" in done.message
    done = run("def f(path, data):\n    raise NotImplementedError", "on_disk(program, f, [b'a'], fail=DiskFull(1))")
    assert done.error == "NotImplementedError"


def test_a_function_runs_on_many_folders(run):
    done = run(
        """
def f(folder, name):
    if not (folder / name).exists():
        raise LookupError(f"no {name}")
    return sorted(path.name for path in folder.iterdir()), (folder / name).read_bytes()
""",
        """
        first, second, third = on_folders(f, [{"a": b"1", "b": None}, {}, {"a": b""}], "a")
        assert list(first[0]) == ["a", "b"] and first[1] == b"1" and third[1] == b""
        assert type(second) is LookupError and "no a" in str(second)
        """,
    )
    assert done.ok, done


def test_a_class_of_the_students_comes_back_as_its_builtin(run):
    done = run(
        """
class Odd(LookupError):
    pass


def f(folder):
    raise Odd("odd")
""",
        "(found,) = on_folders(f, [{}])\nassert type(found) is LookupError and str(found) == 'odd'",
    )
    assert done.ok, done


def test_a_function_of_a_test_cell_does_not_run_there(lab):
    needs("none")
    side = Walled(lab, "none", SETUP, RENAMES)
    try:
        done = side.test("def g(folder, saved):\n    f(folder / 'a', b'')\n\non_disk(g)")
    finally:
        side.close()
    assert done.error == "TypeError" and "setup cell" in done.message


@pytest.mark.parametrize(
    ("forged", "error"),
    [
        ("(b'', None, None)", "BadRecord"),
        ("(b'\\x92\\x90\\x90', None, None)", ""),
        ("(1, 2)", "RuntimeError"),
        ("[b'']", "RuntimeError"),
        ("(b'\\x92\\x90\\x90', None, (1, 2, 3))", "RuntimeError"),
        ("(b'\\x92\\x90\\x90', None, (['SystemExit', 'no such'], 'x', 1))", ""),
    ],
)
def test_what_a_hostile_process_sends_is_a_record_or_an_error(lab, forged, error):
    needs("none")
    student = f"""
from threeloops.lab.checking import on_disk as module


def f(path, data):
    module._record = lambda *_: {forged}
"""
    side = Walled(lab, "none", SETUP, student)
    try:
        side.test("on_disk(program, f, [b'a'], fail=DiskFull(10 ** 6))")
        done = side.test(
            "seen = on_disk(program, f, [b'a'])\nassert seen.error is None or type(seen.error) is RuntimeError"
        )
    finally:
        side.close()
    assert done.error == error or (not error and done.ok), done
