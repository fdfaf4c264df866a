"""The reader's record: atomic, shared by several kernels, never fatal, and the map that it colours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from threeloops.lab import check, course_map, labs
from threeloops.lab.course import journal
from threeloops.lab.widgets import display


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    return tmp_path / "state"


@pytest.fixture
def in_a_lab(tmp_path, monkeypatch):
    folder = tmp_path / "work" / "03_triton_fusion"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(journal, "in_kernel", lambda: True)


def test_a_passed_check_is_recorded_under_the_lab_of_its_folder(home, in_a_lab):
    with check("online_softmax", "the online softmax"):
        check.true(True, "")
    assert journal.passed() == {"03_triton_fusion": {"online_softmax"}}


def test_a_failed_check_is_not(home, in_a_lab):
    with pytest.raises(AssertionError), check("online_softmax", "the online softmax"):
        check.true(True, "")
        check.true(False, "no")
    assert journal.passed() == {} and not home.exists()


def test_nothing_is_recorded_outside_a_kernel(home, in_a_lab, monkeypatch):
    monkeypatch.setattr(journal, "in_kernel", display.in_kernel)
    assert journal.record("online_softmax") is False and not home.exists()


@pytest.mark.parametrize("execution", ["autograde", "validate"])
def test_nothing_is_recorded_while_nbgrader_executes(home, in_a_lab, monkeypatch, execution):
    monkeypatch.setenv("NBGRADER_EXECUTION", execution)
    assert journal.record("online_softmax") is False and not home.exists()


def test_nothing_is_recorded_outside_the_course(home, in_a_lab, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert journal.record("online_softmax") is False
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "01_roofline.ipynb"))
    assert journal.record("ridge_point") is True
    assert journal.passed() == {"01_roofline": {"ridge_point"}}


def test_a_lab_of_ones_own_is_recorded_as_the_courses_are(home, tmp_path, monkeypatch):
    (tmp_path / "20_my_lab").mkdir()
    monkeypatch.chdir(tmp_path / "20_my_lab")
    assert journal.current_lab() is None
    (tmp_path / "20_my_lab/20_my_lab.ipynb").write_text("{}")
    assert journal.current_lab() == "20_my_lab"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", "20_my_lab/20_my_lab.ipynb")
    assert journal.current_lab() == "20_my_lab"


def test_a_home_that_cannot_be_made_is_not_fatal(in_a_lab, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "file" / "state"))
    with check("online_softmax", "the online softmax"):
        check.true(True, "")
    assert "✓" in capsys.readouterr().out and journal.passed() == {}


def test_a_write_that_fails_halfway_leaves_the_old_record_and_no_rubbish(home, in_a_lab, monkeypatch):
    journal.record("first")
    before = (home / "progress.json").read_bytes()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert journal.record("second") is False
    assert (home / "progress.json").read_bytes() == before
    assert sorted(p.name for p in home.iterdir()) == ["progress.json", "progress.lock"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "\x00", '{"passed": 3}', '{"passed": {"01_roofline": ["x"]}}', '{"courses": 3}',
     '{"courses": {"/work": []}}', '{"courses": {"/work": {"passed": {"01_roofline": 1}}}}'],
)  # fmt: skip
def test_an_unreadable_record_counts_as_empty_and_is_replaced(home, in_a_lab, text):
    home.mkdir()
    (home / "progress.json").write_text(text)
    assert journal.passed() == {}
    assert journal.record("online_softmax") is True
    assert journal.passed() == {"03_triton_fusion": {"online_softmax"}}


def test_the_time_of_the_first_pass_is_kept(home, in_a_lab):
    journal.record("first")
    stored = json.loads((home / "progress.json").read_text())
    (kept,) = stored["courses"].values()
    kept["passed"]["03_triton_fusion"]["first"] = "2026-01-01T00:00:00+00:00"
    (home / "progress.json").write_text(json.dumps(stored))
    journal.record("first")
    journal.record("second")
    again = next(iter(json.loads((home / "progress.json").read_text())["courses"].values()))["passed"][
        "03_triton_fusion"
    ]
    assert again["first"] == "2026-01-01T00:00:00+00:00" and set(again) == {"first", "second"}


def test_a_check_that_fails_later_takes_its_points_back(home, in_a_lab):
    def run(holds):
        with check("online_softmax", "the online softmax", part="values"):
            check.true(holds, "no")

    run(True)
    journal.record("online_softmax", "edges")
    with pytest.raises(AssertionError):
        run(False)
    assert journal.passed() == {"03_triton_fusion": {"online_softmax/edges"}}
    run(True)
    assert journal.passed() == {"03_triton_fusion": {"online_softmax/values", "online_softmax/edges"}}


def test_behind_the_wall_a_failed_check_takes_nothing_back(home, in_a_lab, monkeypatch):
    journal.record("online_softmax")
    monkeypatch.setattr(journal, "in_kernel", display.in_kernel)
    assert journal.forget("online_softmax") is False and journal.passed() == {"03_triton_fusion": {"online_softmax"}}


def test_two_copies_of_the_course_do_not_count_each_others_points(home, in_a_lab, tmp_path, monkeypatch):
    journal.record("first")
    journal.note_prediction("gap", guess=3)
    other = tmp_path / "another clone" / "work" / "03_triton_fusion"
    other.mkdir(parents=True)
    monkeypatch.chdir(other)
    assert journal.passed() == {} and journal.predictions() == {}
    journal.record("second")
    assert journal.passed() == {"03_triton_fusion": {"second"}}
    assert journal.passed(tmp_path / "work") == {"03_triton_fusion": {"first"}}
    (tmp_path / "link").symlink_to(tmp_path / "work")
    assert journal.passed(tmp_path / "link") == {"03_triton_fusion": {"first"}}


def test_a_notebook_that_runs_in_another_folder_is_known_by_its_session(home, in_a_lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "work/03_triton_fusion/03_triton_fusion_dives.ipynb"))
    journal.record("first")
    assert journal.passed(tmp_path / "work") == {"03_triton_fusion": {"first"}}


def test_a_record_from_before_folders_goes_to_the_first_that_writes(home, in_a_lab, tmp_path, monkeypatch):
    home.mkdir()
    (home / "progress.json").write_text('{"version": 1, "passed": {"01_roofline": {"old": "2026"}}, "predictions": {}}')
    assert journal.passed() == {"01_roofline": {"old"}}
    journal.record("new")
    assert journal.passed() == {"01_roofline": {"old"}, "03_triton_fusion": {"new"}}
    assert journal.passed(tmp_path / "elsewhere") == {}


def test_kernels_that_write_at_once_lose_nothing(home, in_a_lab):
    code = (
        "import sys; from threeloops.lab.course import journal; journal.in_kernel = lambda: True\n"
        "for i in range(20): assert journal.record(sys.argv[1] + str(i))"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", code, writer]) for writer in "abcd"]
    assert [kernel.wait(600) for kernel in kernels] == [0] * 4
    assert len(journal.passed()["03_triton_fusion"]) == 80


def test_the_labs_lie_on_three_loops_and_where_they_meet():
    assert [lab.number for lab in labs()] == list(range(len(labs())))
    assert {lab.loop for lab in labs()} == {"start", "inner", "training", "product", "meet"}
    assert len({lab.name for lab in labs()}) == len(labs()) == 21
    assert all(lab.question.endswith("?") and lab.title for lab in labs())


SOLUTIONS = Path(__file__).parents[4] / "solutions"
WRITTEN = [lab for lab in labs() if (SOLUTIONS / lab.name / f"{lab.name}.py").exists()]


@pytest.mark.parametrize("lab", WRITTEN, ids=lambda lab: lab.name)
def test_the_map_counts_the_checks_that_the_lab_has(lab):
    source = (SOLUTIONS / lab.name / f"{lab.name}.py").read_text(encoding="utf-8")
    assert source.count('"grade": true') == lab.checks


def test_the_map_is_filled_as_far_as_the_reader_has_come(home, tmp_path, monkeypatch):
    from matplotlib.patches import Wedge

    def filled(progress):
        fig = course_map(progress)
        return fig.get_suptitle(), sum(isinstance(patch, Wedge) for patch in fig.axes[0].patches)

    total = sum(lab.checks for lab in labs())
    assert filled({}) == (f"Three loops, 21 labs: 0 of {total} checks passed", 0)
    assert filled({"01_roofline": {"a", "b"}, "08_collectives": 4, "not a lab": 3})[1] == 2
    whole = next(lab.checks for lab in labs() if lab.name == "08_collectives")
    assert f" {2 + whole} of {total}" in filled({"01_roofline": {"a", "b"}, "08_collectives": whole + 5})[0]
    (tmp_path / "05_mixed_precision").mkdir()
    monkeypatch.chdir(tmp_path / "05_mixed_precision")
    monkeypatch.setattr(journal, "in_kernel", lambda: True)
    assert journal.record("scaler")
    assert filled(None) == (f"Three loops, 21 labs: 1 of {total} checks passed", 1)
