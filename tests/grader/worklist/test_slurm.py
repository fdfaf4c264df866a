"""Waiting for an array of Slurm, whose answers are played here."""

import os
from pathlib import Path

import pytest
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
