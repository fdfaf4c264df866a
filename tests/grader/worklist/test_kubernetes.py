"""The Indexed Job that `threeloops grade --on kubernetes` prints passes Kubernetes' schema and grades all shares."""

import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.course.cluster_command import require_one_way
from threeloops_grader.worklist.kubernetes import Kubernetes, indexed_job
from threeloops_grader.worklist.nodes import UNFIT
from threeloops_grader.worklist.share import Share

WORDS = ["threeloops", "grade", "--lab", "00_start_here", "--submissions", "/class/a b"]


def job(**more):
    request = Kubernetes(image="registry.example/grade:1", claim="class", **{"shares": 64, "workers": 8, **more})
    return yaml.safe_load(indexed_job("00_start_here", WORDS, request))


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("gpus", [0, 1])
def test_the_job_passes_the_strict_schema(version, gpus):
    kubernetes_validate.validate(job(gpus=gpus), version, strict=True)


def test_the_schema_would_find_a_misspelt_field():
    wrong = job()
    wrong["spec"]["completionsMode"] = wrong["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_every_index_grades_one_share_and_together_they_grade_all():
    spec = job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    shell, option, command = container["command"]
    assert (shell, option) == ("sh", "-c")
    shares = set()
    for index in range(spec["completions"]):
        words = shlex.split(command.replace("$JOB_COMPLETION_INDEX", str(index)))
        assert words[:-2] == ["exec", *WORDS] and words[-2] == "--shard"
        shares.add(Share.parse(words[-1]))
    assert shares == {Share(index, 64) for index in range(64)}
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", 8)


def test_a_lost_pod_and_an_unfit_node_cost_no_retry():
    spec = job(retries=2)["spec"]
    unfit, lost, failed = spec["podFailurePolicy"]["rules"]
    assert unfit["action"] == lost["action"] == "Ignore" and failed["action"] == "Count"
    assert unfit["onExitCodes"]["values"] == [UNFIT]
    assert spec["backoffLimitPerIndex"] == 2
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "which podFailurePolicy needs"


def test_options_that_a_printed_job_cannot_carry_out_are_refused():
    with pytest.raises(LabError, match="prints a job and grades nothing, so --json, --fresh cannot be carried out"):
        require_one_way(shard=None, merge=False, on="kubernetes", fresh=True, to={"json": Path("grades.json")})
    require_one_way(shard=None, merge=False, on="kubernetes", fresh=False, to={"json": None})


def test_gpus_are_limits_too():
    (container,) = job(gpus=2)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
