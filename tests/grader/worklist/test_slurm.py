"""Submitting an array to Slurm and waiting for it; the answers of its programs are played here."""

import os
import shlex
from pathlib import Path

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.course.cluster_command import require_engine
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.worklist import slurm

REQUEST = slurm.Slurm(poll_seconds=0.01)


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Programs in the place of Slurm's: squeue gives one answer after the other, and scancel notes its words."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def play(*answers: str) -> Path:
        for number, answer in enumerate(answers):
            (tmp_path / f"answer{number}").write_text(answer)
        program(tmp_path / "squeue", f'n=$(ls {tmp_path}/asked* 2>/dev/null | wc -l); : > {tmp_path}/asked$n\n'
                f"cat {tmp_path}/answer$n")  # fmt: skip
        program(tmp_path / "scancel", f'echo "$@" > {tmp_path}/cancelled')
        return tmp_path / "cancelled"

    return play


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_tasks_that_no_node_could_launch_are_cancelled_so_that_they_can_be_submitted_again(played):
    """Slurm holds such a task for ever: found when a node's slurmstepd could not start."""
    held = "PENDING launch failed requeued held\n"
    cancelled = played("RUNNING None\n" + held, held + "PENDING launch_failed_requeued_held\n")
    said = []
    slurm._wait("17", REQUEST, said.append)
    assert cancelled.read_text() == "17\n"
    assert said == ["tasks that no node could launch: 2; slurmd's log says why"]


def test_a_task_that_a_person_holds_is_waited_for(played):
    cancelled = played("PENDING JobHeldUser\n", "RUNNING None\n", "")
    said = []
    slurm._wait("17", REQUEST, said.append)
    assert said == [] and not cancelled.exists()


def refuse(folder: Path, answer: str) -> None:
    """Play an sbatch that says `answer`."""
    program(folder / "sbatch", f"printf '%b' {shlex.quote(answer)} >&2; exit 1")
    program(folder / "srun", "exit 1")


FAILED = "sbatch: error: Batch job submission failed: "
ANSWERS = [
    (f"sbatch: error: invalid partition specified: none\\n{FAILED}Invalid partition name specified", "sinfo --summ"),
    (f"{FAILED}Invalid account or account/partition combination specified", "sacctmgr show associations"),
    ("sbatch: error: Invalid --mem specification", "%N %m"),
    (f"sbatch: error: Memory specification can not be satisfied\\n{FAILED}Requested node configuration", "%N %m"),
    ("sbatch: error: Invalid generic resource (gres) specification", "lower --gpus"),
    (f"{FAILED}Requested node configuration is not available", "ask for less"),
    (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "lower --minutes"),
    (f"{FAILED}Invalid job array specification", "MaxArraySize"),
    (f"{FAILED}Required partition not available (inactive or drain)", "sinfo --summarize"),
    (f"{FAILED}Unable to contact slurm controller (connect failure)", "scontrol ping"),
    (f"{FAILED}Something that only this site's plugin says", "scontrol show partition"),
]  # fmt: skip
"""What Slurm 22 and 23 answered to wrong requests, and a word of the next step."""


@pytest.mark.parametrize(("answer", "step"), ANSWERS)
def test_a_refusal_names_what_was_asked_what_slurm_said_and_what_to_do(played, tmp_path, answer, step):
    played()
    refuse(tmp_path, answer)
    request = slurm.Slurm(partition="none", account="physics", minutes=90, memory="lots", gpus=3, cores=5)
    with pytest.raises(slurm.Refused) as refused:
        slurm.run_on_slurm(lambda: [["true"], ["true"]], request, tmp_path / "logs", lambda _: None)
    message = str(refused.value)
    for value in (
        "--partition none",
        "--account physics",
        "--minutes 90",
        "--memory lots",
        "cores 5",
        "--gpus 3",
        "tasks 2",
    ):
        assert value in message
    assert answer.split("error: ")[-1] in message and step in message
    assert message.count("Batch job submission failed") == answer.count("Batch job submission failed")


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "Job's account not known, so it can't use this partition"])
def test_tasks_that_slurm_accepts_and_never_starts_are_cancelled_and_refused(played, reason):
    """Found with a time limit above the partition's: the command waited for ever and did not say for what."""
    cancelled = played(*[f"PENDING {reason}\nPENDING {reason}\n"] * 9)
    with pytest.raises(slurm.Refused, match=f"never starts the tasks .{reason}"):
        slurm._wait("17", REQUEST, lambda _: None)
    assert not cancelled.exists(), "_run_array cancels on every exception"


def test_tasks_that_wait_for_their_turn_are_waited_for_and_the_reason_is_told(played, monkeypatch):
    monkeypatch.setattr(slurm, "_ASK_SECONDS", 0.0)
    waits = "PENDING Resources\n" + "PENDING PartitionTimeLimit\n"
    played(waits, waits, waits, waits, "RUNNING None\n", "")
    monkeypatch.setattr(slurm.subprocess, "run", with_a_minute(slurm.subprocess.run))
    said = []
    slurm._wait("17", REQUEST, said.append)
    assert said == ["1 pending (Resources), 1 pending (PartitionTimeLimit)"] * 4 + ["1 running"]


def with_a_minute(run):
    """subprocess.run with a timeout of a minute, whatever the caller says."""
    return lambda *words, **more: run(*words, **{**more, **({"timeout": 60} if "timeout" in more else {})})


def test_a_refusal_after_finished_work_says_that_it_is_kept(played, tmp_path, monkeypatch):
    played()
    arrays = iter([[], slurm.Refused("no node is left")])

    def run(*_):
        if isinstance(outcome := next(arrays), Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(slurm, "_run_array", run)
    program(tmp_path / "sbatch", "exit 1")
    program(tmp_path / "srun", "exit 1")
    with pytest.raises(MachineFault, match="no node is left. Finished work is kept") as fault:
        slurm.run_on_slurm(lambda: [["true"]], REQUEST, tmp_path / "logs", lambda _: None)
    assert not isinstance(fault.value, slurm.Refused)


@pytest.mark.parametrize(
    ("on", "instead"), [("here", "has no meaning without --on"), ("kubernetes", "has no meaning with --on kubernetes")]
)
def test_an_option_of_slurm_is_not_ignored_without_it(on, instead):
    engines = {"slurm": {"partition": "gpu", "account": None}, "kubernetes": {"image": None}}
    with pytest.raises(LabError, match=f"--partition gpu {instead}.*--on slurm"):
        require_engine(on, engines)
    require_engine("slurm", engines)
