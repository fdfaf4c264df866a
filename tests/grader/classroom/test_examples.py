"""The examples of docs/teaching: a hub's configuration is loaded, a workflow's steps are commands that exist."""

import re

import yaml
from grading import REPOSITORY
from traitlets.config import PyFileConfigLoader

EXAMPLES = REPOSITORY / "docs" / "teaching"


def test_the_hubs_configuration_loads_and_names_what_the_course_reads():
    loaded = PyFileConfigLoader("jupyterhub_config.py", path=str(EXAMPLES)).load_config()
    named = loaded.Spawner.environment
    assert set(named) <= {"OMP_NUM_THREADS"} | set(re.findall("THREELOOPS_EXCHANGE", _text("nbgrader_config.py")))
    assert loaded.Authenticator.allow_all is True


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


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text()
