"""The examples of docs/teaching: a hub's configuration is loaded, a workflow's steps are commands that exist."""

import re
from pathlib import Path
from types import SimpleNamespace

import yaml
from grading import REPOSITORY
from threeloops_grader.worklist.share import Share
from traitlets.config import PyFileConfigLoader

EXAMPLES = REPOSITORY / "docs" / "teaching"
VARIABLE = re.compile(r"\bTHREELOOPS_[A-Z]+\b")


def test_the_hubs_configuration_loads_and_names_what_the_course_reads():
    loaded = PyFileConfigLoader("jupyterhub_config.py", path=str(EXAMPLES)).load_config()
    named = loaded.Spawner.environment
    read = {name for path in (REPOSITORY / "grader").rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert {"THREELOOPS_ROOT", "THREELOOPS_EXCHANGE"} <= set(named) <= {"OMP_NUM_THREADS"} | read
    assert loaded.Authenticator.allow_all is True


def test_on_the_hub_each_user_has_a_course_and_nobody_needs_the_instructors():
    """Its checkout is closed to others, so nothing that they run may lie in it."""
    loaded = PyFileConfigLoader("jupyterhub_config.py", path=str(EXAMPLES)).load_config()
    instructor, ada, ben = (
        Path(loaded.Spawner.environment["THREELOOPS_ROOT"](SimpleNamespace(user=SimpleNamespace(name=name))))
        for name in (*loaded.Authenticator.admin_users, "ada", "ben")
    )
    assert (ada.parent, ben.parent) == (Path("/home/ada"), Path("/home/ben"))
    programs = Path(loaded.Spawner.cmd[0]).parent
    for theirs in (ada, programs, Path(loaded.Spawner.environment["THREELOOPS_EXCHANGE"])):
        assert not theirs.is_relative_to(instructor)
    steps = (EXAMPLES / "jupyterhub_config.py").read_text().partition('"""\n\n')[0]
    made, course, hub = (
        line.split() for line in steps.splitlines() if f" {programs.parent}" in line and "-s" not in line
    )
    assert made[:3] == ["python3", "scripts/make_venv.py", str(programs.parent)] and (REPOSITORY / made[1]).is_file()
    assert (REPOSITORY / made[3]).is_file() and "--editable" not in made, "that would lead into the checkout"
    assert course[:2] == hub[:2] == [f"{programs}/pip", "install"] and course[-1] == "."
    assert {"jupyterhub", "nbgitpuller"} <= set(hub) and loaded.Spawner.cmd[0].endswith("jupyterhub-singleuser")


def test_the_workflow_is_yaml_and_calls_what_a_bundle_has():
    workflow = yaml.safe_load((EXAMPLES / "github_classroom.yml").read_text())
    steps = workflow["jobs"]["check"]["steps"]
    assert [step.get("uses", "").partition("@")[0] for step in steps[:2]] == [
        "actions/checkout",
        "actions/setup-python",
    ]
    assert steps[2]["run"] == "make environment" and re.search("^environment:", _text("Makefile"), re.MULTILINE)
    assert ".venv/bin/threeloops check" in steps[3]["run"]
    assert workflow["permissions"] == {"contents": "read"}


def test_the_workflow_of_shares_grades_each_share_once_and_merges_all_of_them():
    jobs = yaml.safe_load((EXAMPLES / "github_shards.yml").read_text())["jobs"]
    shares = jobs["grade"]["strategy"]["matrix"]["share"]
    grading, merging = ([step.get("run", "") for step in jobs[name]["steps"]] for name in ("grade", "merge"))
    (command,) = [line for line in grading if "--shard" in line]
    numbers = [command.replace("${{ matrix.share }}", str(share)).rpartition(" ")[2] for share in shares]
    assert numbers == [str(Share(index, len(shares))) for index in range(len(shares))]
    assert any("--merge --json" in line for line in merging) and jobs["merge"]["needs"] == "grade"
    uploaded = next(step["with"] for step in jobs["grade"]["steps"] if "upload" in step.get("uses", ""))
    fetched = next(step["with"] for step in jobs["merge"]["steps"] if "download" in step.get("uses", ""))
    assert uploaded["name"].startswith(fetched["pattern"].rstrip("*")) and fetched["merge-multiple"]


def test_the_image_of_the_grader_copies_only_what_is_sent_to_its_builder():
    lines = (EXAMPLES / "grade.Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]}
    ignored, *sent = [
        line for line in _text("docs/teaching/grade.Dockerfile.dockerignore").splitlines() if line[0] != "#"
    ]
    assert ignored == "*" and copied == {line[1:] for line in sent if line.startswith("!")}
    assert all((REPOSITORY / name).exists() for name in copied)
    assert {"solutions", "lib", "grader"} <= copied and any("bubblewrap" in line for line in lines)


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text()
