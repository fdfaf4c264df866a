"""Run commands as array jobs of Slurm, through submitit, until the files that they write show that all are done.

The payload of a job is a command line, and nothing else is pickled. The exit of a job counts for nothing either: after
each array the caller looks at what is left. So a lost node, a preempted task or a task that ran twice needs no case of
its own.
"""

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.helpers import DelayedSubmission

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.machine.faults import MachineFault

__all__ = ["Refused", "Slurm", "require_slurm", "run_on_slurm"]

_PROGRAMS = ("sbatch", "squeue", "srun", "scancel")
_GONE = "Invalid job id"
_HELD = "HELD"
_LAUNCH_FAILED = "launch failed requeued held"
_ASK_SECONDS = 60.0
_NEVER = (
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "PartitionConfig",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "Job's account not",
    "Job's QOS not",
)
"""Reasons for which Slurm accepts a task and never starts it, as long as nobody changes the request or the cluster."""
_CONFIRMATIONS = 3
_NEXT_STEPS = (
    (("account", "Account"), "`sacctmgr show associations user=$USER` lists your accounts; name one with --account"),
    (("TimeLimit", "time limit"), "`sinfo -o '%P %l'` lists the limits of partitions; lower --minutes"),
    (("--mem", "Memory"), "`sinfo -o '%N %m'` lists nodes and their MB; give --memory as Slurm writes it, such as 4G"),
    (("gres", "generic resource"), "`sinfo -o '%P %G'` lists the GPUs of partitions; lower --gpus"),
    (("array",), "`scontrol show config` lists MaxArraySize; give fewer tasks with --shares"),
    (("configuration is not", "NodeLimit", "PartitionConfig"), "`sinfo -o '%N %c %m %G'` lists nodes; ask for less"),
    (("partition",), "`sinfo --summarize` lists the partitions; name one of them with --partition"),
    (("controller",), "`scontrol ping` says whether the controller runs; give the same command again later"),
)  # fmt: skip
"""The next step for an answer of Slurm that has one of these words. The first that fits counts."""
_ANY_STEP = "`sinfo` and `scontrol show partition` list what the cluster allows"


class Refused(MachineFault):
    """Slurm does not take the request. Nothing was executed for it."""


@dataclass(frozen=True)
class Slurm:
    """The request for each task of an array, and how often lost tasks are submitted again. None leaves a setting to the
    cluster. `workers` limits the tasks that run at the same time."""

    partition: str | None = None
    account: str | None = None
    minutes: int = 60
    memory: str = "4G"
    cores: int = 2
    gpus: int = 0
    workers: int = 16
    retries: int = 3
    poll_seconds: float = 2.0


class _CommandTask:
    """A function of submitit's that runs one command line in the job. After a time limit it is submitted again."""

    def __call__(self, words: list[str]) -> int:
        return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode

    def checkpoint(self, words: list[str]) -> DelayedSubmission:
        return DelayedSubmission(self, words)


def require_slurm() -> None:
    """Raise LabError if this machine has none of Slurm's commands."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        raise LabError(
            f"--on slurm: {', '.join(missing)} not found; run this on a login node of the cluster, or grade shares "
            "with --shard on machines of your own and put them together with --merge"
        )


def run_on_slurm(
    left: Callable[[], Sequence[list[str]]],
    slurm: Slurm,
    folder: Path,
    say: Callable[[str], None],
    unfit: Callable[[], dict[str, str]] = dict,
) -> int:
    """Submit the commands that `left()` returns as one array, wait for it, and look again, until none is left.

    Args:
        left: returns the commands whose work is not done, judged by the files that they write.
        folder: for submitit's files and the logs of the tasks; every node must see it.
        unfit: returns nodes that cannot do the work, with reasons; they get none in the next array.

    Returns the number of commands that were submitted. Raises MachineFault if some are left after `slurm.retries` more
    arrays than the first, and Refused if Slurm does not take the first array.
    """
    require_slurm()
    submitted = 0
    told: set[str] = set()
    logs: list[Path] = []
    for attempt in range(slurm.retries + 1):
        if not (commands := list(left())):
            return submitted
        again = f", attempt {attempt + 1}" if attempt else ""
        nodes = unfit()
        say(f"submitting {len(commands)} tasks to Slurm{again}")
        try:
            logs = _run_array(commands, slurm, folder, sorted(nodes), say)
        except Refused as error:
            if submitted:
                raise MachineFault(f"{error}. Finished work is kept") from error
            raise
        submitted += len(commands)
        for node, reason in unfit().items():
            if node not in told:
                say(f"node {node} gets no more work: {reason}")
            told.add(node)
    if commands := list(left()):
        why = f" Left out: {'; '.join(f'{node} ({reason})' for node, reason in unfit().items())}." if told else ""
        raise MachineFault(
            f"{len(commands)} of the tasks are not done after {slurm.retries + 1} attempts.{why} The last log says: "
            f"{_last_words(logs)}. Finished work is kept, and the same command goes on from there"
        )
    return submitted


def _run_array(
    commands: Sequence[list[str]], slurm: Slurm, folder: Path, excluded: Sequence[str], say: Callable[[str], None]
) -> list[Path]:
    """Submit the commands as one array and wait for it. Cancels it on every exception. Returns the tasks' logs."""
    jobs = _submit(commands, slurm, folder, excluded)
    array = jobs[0].job_id.partition("_")[0]
    try:
        _wait(array, slurm, say)
    except BaseException:
        subprocess.run(["scancel", array], capture_output=True, check=False)
        raise
    return [job.paths.stdout for job in jobs]


def _submit(commands: Sequence[list[str]], slurm: Slurm, folder: Path, excluded: Sequence[str]) -> list[submitit.Job]:
    executor = submitit.SlurmExecutor(folder=folder / "%A", max_num_timeout=slurm.retries)
    given = {"partition": slurm.partition, "account": slurm.account, "exclude": ",".join(excluded) or None}
    executor.update_parameters(
        job_name="threeloops",
        time=slurm.minutes,
        mem=slurm.memory,
        cpus_per_task=slurm.cores,
        array_parallelism=slurm.workers,
        stderr_to_stdout=True,
        additional_parameters={"requeue": True},
        **({"gpus_per_node": slurm.gpus} if slurm.gpus else {}),
        **{name: value for name, value in given.items() if value is not None},
    )
    try:
        return executor.map_array(_CommandTask(), commands)
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines() or [str(error)]
        raise Refused(_refusal(lines, len(commands), slurm, excluded)) from error


def _refusal(lines: Sequence[str], tasks: int, slurm: Slurm, excluded: Sequence[str] = ()) -> str:
    """Say what Slurm was asked for, what it answered, and what to do. `lines` are its answer."""
    sentences = dict.fromkeys(line.removeprefix("sbatch: error: ").strip() for line in lines)
    answer = "; ".join(line for line in sentences if line)
    asked = {
        "--partition": slurm.partition or "the default",
        "--account": slurm.account or "the default",
        "--minutes": slurm.minutes,
        "--memory": slurm.memory,
        "cores": slurm.cores,
        "--gpus": slurm.gpus,
        "tasks": tasks,
    }
    request = ", ".join(f"{name} {value}" for name, value in asked.items())
    left_out = f" Nodes on which bubblewrap does not work were left out: {', '.join(excluded)}." if excluded else ""
    step = next((step for words, step in _NEXT_STEPS if any(word in answer for word in words)), _ANY_STEP)
    return f"Slurm refused the job: {answer}. It was asked for {request}.{left_out} {step[0].upper() + step[1:]}"


def _wait(array: str, slurm: Slurm, say: Callable[[str], None]) -> None:
    """Return when Slurm has no task of the array left, running or waiting. A controller that does not answer is asked
    again. Slurm holds tasks that a node could not launch, for ever; they are cancelled, so that they can be submitted
    again. Raises Refused if all tasks wait for something that does not happen by itself."""
    told = time.monotonic()
    hopeless = 0
    while (tasks := _tasks(array)) is None or any(state != _HELD for state, _ in tasks):
        reasons = {reason for _, reason in tasks or [] if reason}
        never = [reason for reason in sorted(reasons) if reason.startswith(_NEVER)]
        hopeless = hopeless + 1 if tasks and all(reason in never for _, reason in tasks) else 0
        if hopeless == _CONFIRMATIONS:
            raise Refused(_refusal([f"it never starts the tasks ({', '.join(never)})"], len(tasks or []), slurm))
        if time.monotonic() - told > _ASK_SECONDS:
            told = time.monotonic()
            say(", ".join(_summary(tasks)) if tasks else "Slurm does not answer")
        time.sleep(slurm.poll_seconds)
    if tasks:
        say(f"tasks that no node could launch: {len(tasks)}; slurmd's log says why")
        subprocess.run(["scancel", array], capture_output=True, check=False)


def _summary(tasks: Sequence[tuple[str, str]]) -> list[str]:
    """Count tasks of the same state that wait for the same reason."""
    return [
        f"{count} {state.lower()}" + (f" ({reason})" if reason else "")
        for (state, reason), count in Counter(tasks).items()
    ]


def _tasks(array: str) -> list[tuple[str, str]] | None:
    """Return the state of each task that Slurm still has and the reason why it waits ("" if it does not), or None if
    Slurm does not answer."""
    words = ["squeue", "--noheader", "--array", f"--jobs={array}", "--format=%T %r"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        tasks = [line.partition(" ") for line in done.stdout.splitlines() if line.strip()]
        return [
            (_HELD if _LAUNCH_FAILED in reason.replace("_", " ") else state, reason if state == "PENDING" else "")
            for state, _, reason in tasks
        ]
    return [] if _GONE in done.stderr else None


def _last_words(logs: Sequence[Path]) -> str:
    texts = [path.read_text(errors="replace").strip() for path in logs if path.is_file()]
    return next((text.splitlines()[-1] for text in reversed(texts) if text), "nothing")
