"""What a student's function does to a folder is recorded on the grader's side, as beside the student's code.

The student's process cannot say that an operation happened: it can only have the disk do one more.
"""

import pytest
from grading import SANDBOXES, needs
from sides import Walled, course_fixture, sides_fixture

SETUP = """
from threeloops.lab import check
from threeloops.lab.disks.on_disk import in_folder, on_disk, on_folders
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


lab = course_fixture()
run = sides_fixture(SETUP)


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
            assert type(seen.error) is OSError and f"[Errno {number}]" in str(seen.error), seen.error
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


def test_a_test_fills_a_folder_and_reads_it(run):
    done = run(
        """
def f(folder, name):
    (folder / "sub" / name).write_bytes((folder / "a").read_bytes() + b"2")
    (folder / "a").unlink()
""",
        """
        with in_folder({"a": b"1", "sub": None}) as folder:
            f(folder.path, "b")
            assert folder.read("sub/b") == b"12" and folder.read("a") is None and folder.read("no/a") is None
        """,
    )
    assert done.ok, done


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("makes", "refused"),
    [
        ("os.symlink('/etc/passwd', folder / 'a')", True),
        ("(os.mkdir(folder / 'real'), os.symlink(folder / 'real', folder / 'sub'))", False),
        ("os.mkfifo(folder / 'a')", True),
        ("os.mkdir(folder / 'a')", True),
        ("(open(folder / 'a', 'wb').truncate(1 << 40))", None),
        ("__import__('shutil').rmtree(folder.parent)", False),
    ],
)
def test_what_a_student_leaves_there_is_not_followed(lab, sandbox, makes, refused):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, f"import os\ndef f(folder):\n    {makes}")
    try:
        done = side.test(
            "with in_folder({}) as folder:\n    f(folder.path)\n"
            "    assert [folder.read(name) for name in ('a', 'sub/a')] == [None] * 2"
        )
        again = side.test("with in_folder({}) as folder:\n    pass")
    finally:
        side.close()
    assert not done.fault and not again.fault, (done, again)
    assert done.error == "WallError" if refused else refused is None or done.ok or "could not be" in done.message, done


FORGES = """
import sys
from threeloops.lab.disks import kept


def f(path, data):
    [(_, recorder)] = kept._open
    disk = recorder._keeper
    {}
"""


@pytest.mark.parametrize(
    ("forged", "error"),
    [
        ("disk._ask(kept.Saved().to_bytes())", "RuntimeError"),
        ("disk._ask(b'no operation')", "RuntimeError"),
        ("disk._ask([1, 2])", "RuntimeError"),
        ("disk._ask(kept.Write(7, 'model', 0, b'a').to_bytes())", "RuntimeError"),
        ("disk._ask(kept.Sync(7, 'model').to_bytes())", "RuntimeError"),
        ("[disk._ask(kept.SyncAll().to_bytes()) for _ in range(10_001)]", "RuntimeError"),
        ("recorder.record.operations.append(kept.Write(1, 'model', 0, b'a'))", "Escaped"),
        ("kept._end = lambda is_whole: None", "AssertionError"),
        ("kept._begin = None", "AssertionError"),
        ("sys.modules['threeloops.lab.disks.kept'] = None", "ModuleNotFoundError"),
        ("disk._ask = lambda operation: 1; open(path, 'wb').write(data)", "AssertionError"),
        ("disk._ask.args = (99,); disk._ask(b'')", "AttributeError"),
        ("import os; os.write(201, b'no frame')", "AssertionError"),
        ("try: disk._ask(kept.Saved().to_bytes())\n    except RuntimeError: pass", "BadRecord"),
    ],
)
def test_what_a_hostile_process_asks_for_is_done_or_refused(lab, forged, error):
    """Nothing that it does makes a record of an operation that the disk has not done."""
    needs("none")
    side = Walled(lab, "none", SETUP, FORGES.format(forged))
    try:
        done = side.test(
            "seen = on_disk(program, f, [b'a'], files={'model': b'old'})\n"
            "assert files_after(seen.record)['model'] == b'a'"
        )
    finally:
        side.close()
    assert done.error == error and not done.fault, done


def test_a_student_that_asks_without_a_recorder_does_the_exercise(lab):
    """The operations are the evidence, whoever asks for them: this is a right answer in other words."""
    needs("none")
    forged = (
        "[disk._ask(each.to_bytes()) for each in (Create(5, 'x'), Write(5, 'x', 0, data), Sync(5, 'x'), "
        "Rename('x', 'model'), Sync(0, ''))]; kept._end = lambda is_whole: None"
    )
    student = FORGES.format(forged).replace(
        "import sys", "from threeloops.training.checkpoint.crash.model.operations import *"
    )
    side = Walled(lab, "none", SETUP, student)
    try:
        done = side.test(
            "seen = on_disk(program, f, [b'a' * 700], files={'model': b'old'})\n"
            "assert load_all_states(seen.record, load, values=[b'old', b'a' * 700]).ok"
        )
    finally:
        side.close()
    assert done.ok, done
