"""A class graded by several workers, which are killed, preempted, started twice or out of date: its points are those of
an undisturbed run, and each submission has one record.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from grading import needs
from injections import Faults, kill, workers_of
from slurm import Cluster, one_host_cluster, one_host_slurm, wait_until
from submitit.helpers import DelayedSubmission
from threeloops_grader.course.course import submissions
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.release.release import release
from toy_course import make_course

GRADE = [sys.executable, "-m", "threeloops_grader.cli", "grade", "--lab", "toy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_on_a_full_disk_nothing_is_executed_and_afterwards_everything_is_graded(tmp_path):
    needs("bwrap")
    toy = make_class(tmp_path, 2, dict(os.environ))
    toy.records.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", toy.records], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"this machine mounts no disk: {mounted.stderr.decode()}")
    try:
        ballast = toy.records / "ballast"
        ballast.write_bytes(bytes((1 << 20) - (100 << 10)))
        full = toy.run("--shard", "0/1")
        assert full.returncode == 2 and "No space left on device" in full.stderr
        assert toy.faults.executions()["begun"] == 0
        ballast.unlink()
        assert toy.run("--shard", "0/1").returncode == 0
        assert toy.grades() == undisturbed(toy)
    finally:
        subprocess.run(["umount", toy.records], check=True)


@dataclass
class Class:
    """A toy class in `folder`, and what its workers see."""

    folder: Path
    faults: Faults
    environment: dict[str, str]

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def words(self, *more: str) -> list[str]:
        return [*GRADE, "--submissions", str(self.folder / "submitted"), "--records", str(self.records), *more]

    def run(self, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**self.environment, **environment}
        words = self.words(*more)
        return subprocess.run(
            words, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=900, check=False
        )

    def start(self, *more: str, log: str = "log") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                self.words(*more), env=self.environment, cwd=self.folder, stdout=output, stderr=output
            )

    def grades(self) -> str:
        """What `--merge` writes, with the measured seconds taken out."""
        done = self.run("--merge", "--json", "grades.json")
        assert done.returncode == 1, done.stderr + done.stdout
        return timeless((self.folder / "grades.json").read_text())


def timeless(text: str) -> str:
    report = json.loads(text)
    for record in report["records"]:
        record["seconds"] = 0
    return json.dumps(report, indent=1)


def make_class(folder: Path, count: int, environment: dict[str, str], unfit: str = "") -> Class:
    """A class of `count` students: each third one has all answers, none, or half of them."""
    lab = make_course(folder / "course")
    release([lab])
    kinds = [notebook for notebook, _ in submissions(lab).values()]
    for number in range(count):
        path = folder / "submitted" / f"s{number:03}" / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(kinds[number % 3], path)
    faults = Faults(folder / "faults", unfit)
    return Class(folder, faults, {**environment, **faults.environment(), "THREELOOPS_ROOT": str(lab.root)})


def undisturbed(a_class: Class) -> str:
    """The grades of one local run into another folder of records."""
    words = [*GRADE, "--submissions", "submitted", "--records", "undisturbed", "--json", "undisturbed.json"]
    done = subprocess.run(
        words, env=a_class.environment, cwd=a_class.folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 1, done.stderr
    return timeless((a_class.folder / "undisturbed.json").read_text())


def stale_code(folder: Path) -> str:
    """A PYTHONPATH with a copy of the harness in which one comment differs."""
    for part in ("grader", "lib"):
        shutil.copytree(CODE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CODE / "pyproject.toml", folder)
    module = folder / "grader" / "threeloops_grader" / "grading" / "scoring.py"
    module.write_text(module.read_text() + "# another version\n")
    return os.pathsep.join([str(folder / "lib"), str(folder / "grader")])


def test_shares_that_are_cut_off_delivered_twice_or_out_of_date_change_nobodys_points(tmp_path):
    needs("bwrap")
    toy = make_class(tmp_path, 6, dict(os.environ))
    old = {"PYTHONPATH": stale_code(tmp_path / "old")}
    assert toy.run("--shard", "0/2", **old).returncode == 0
    before = toy.run("--merge", "--json", "grades.json")
    assert before.returncode == 2 and "submissions graded by other code" in before.stderr
    assert "submissions without a record" in before.stderr
    assert not (tmp_path / "grades.json").exists()

    toy.faults.switch("hold", on=True)
    cut_off = toy.start("--shard", "0/2")
    wait_for(lambda: toy.faults.executions()["begun"] > 0)
    kill(cut_off.pid)
    cut_off.wait()
    toy.faults.switch("hold", on=False)
    assert toy.faults.executions()["ended"] == 0
    twice = [toy.start("--shard", share) for share in ("0/2", "0/2", "1/2")]
    assert [worker.wait(300) for worker in twice] == [0, 0, 0], (tmp_path / "log").read_text()
    counts = toy.faults.executions()
    assert (counts["ended"], counts["accepted"], counts["thrown"]) == (6, 6, 0)
    assert toy.grades() == undisturbed(toy)


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_ctrl_c_costs_no_points_of_the_submission_that_is_being_executed(tmp_path, sandbox):
    """A terminal sends it to the whole process group. The test that was running used to fail, the answers to the next
    ones were those to the ones before, and the record with 0 points was kept."""
    needs(sandbox)
    toy = make_class(tmp_path, 1, dict(os.environ))
    (path,) = toy.folder.glob("submitted/*/*/*.ipynb")
    path.write_text(path.read_text().replace("    return sum(", "    __import__('time').sleep(0.3)\\n    return sum("))
    words = ["--shard", "0/1", "--sandbox", sandbox]
    worker = subprocess.Popen(
        toy.words(*words),
        env=toy.environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )
    wait_for(lambda: toy.faults.executions()["begun"] > 0)
    time.sleep(0.5)  # the slow answer takes longer, and the test is right whenever the signal arrives
    os.killpg(worker.pid, signal.SIGINT)
    assert b"stopped; what was finished is kept" in worker.communicate(timeout=120)[1]
    assert toy.run(*words).returncode == 0
    (record,) = [json.loads(path.read_text())["record"] for path in (toy.records / "90_toy").glob("*.json")]
    assert (record["score"], record["status"]) == (100.0, "graded"), record["tests"]


def hear_ctrl_c() -> None:
    """A shell starts programs in the background deaf to Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)


def test_an_array_of_slurm_gives_the_share_of_an_unfit_node_to_another(tmp_path):
    needs("bwrap")
    with one_host_slurm(tmp_path / "slurm", nodes=2, cpus=2) as environment:
        toy = make_class(tmp_path / "class", 4, environment, unfit="n0")
        done = toy.run("--on", "slurm", "--shares", "2", "--json", "slurm.json")
        assert done.returncode == 1, done.stderr + done.stdout
        assert "node n0 gets no more work: bubblewrap does not work here: bwrap: No permissions" in done.stdout
        assert "submitting 1 tasks to Slurm, attempt 2" in done.stdout
        assert timeless((toy.folder / "slurm.json").read_text()) == undisturbed(toy)
        assert toy.faults.executions()["ended"] == 4
        payloads = [DelayedSubmission.load(path) for path in (toy.records / "slurm").rglob("*_submitted.pkl")]
        commands = {tuple(words) for payload in payloads for words in payload.args}
        assert commands == {tuple(job_words(toy, share)) for share in ("0/2", "1/2")}, "nothing else is pickled"
        again = toy.run("--on", "slurm", "--shares", "2")
        assert again.returncode == 1 and "submitting" not in again.stdout, "all records are there"
        refused = toy.run("--on", "slurm", "--partition", "none", "--fresh")
        assert refused.returncode == 2 and "Slurm refused the job" in refused.stderr


@pytest.mark.slow
def test_the_course_runs_on_slurm_with_a_task_for_each_lab(tmp_path):
    needs("bwrap")
    with one_host_slurm(tmp_path / "slurm", nodes=2, cpus=2) as environment:
        lab = make_course(tmp_path / "course")
        environment |= {"THREELOOPS_ROOT": str(lab.root), "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-m", "threeloops_grader.cli", "course", "--on", "slurm", "--retries", "0"]

        def course(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*words, *more], env=environment, capture_output=True, text=True, timeout=900, check=False
            )

        green = course()
        assert green.returncode == 0, green.stdout + green.stderr
        assert "100 / 100" in green.stdout and "submitting 1 tasks" in green.stdout
        assert (lab.root / "reports" / "course.json").is_file()
        assert "submitting" not in course().stdout, "it passed before"
        lab.source.write_text(lab.source.read_text().replace("3.0, what", "4.0, what", 1))
        red = course()
        assert red.returncode == 1 and "reference scored 60, expected 100" in red.stdout, red.stdout


def job_words(toy: Class, share: str) -> list[str]:
    words = [*GRADE[:-1], "90_toy", "--submissions", str(toy.folder / "submitted"), "--records", str(toy.records)]
    return [*words, "--sandbox", "auto", "--jobs", "2", "--shard", share]


class Storm:
    """Random faults, one after the other, while a class is graded on Slurm. `done` holds each with its time, and
    `kills` is the number of executions that they can have cut off."""

    def __init__(self, toy: Class, cluster: Cluster, seed: int, shares: int) -> None:
        self.toy = toy
        self.cluster = cluster
        self.random = random.Random(seed)
        self.shares = shares
        self.done: list[tuple[str, float]] = []
        self.kills = 0
        self.back_at: dict[str, float] = {}
        self.parent = self.start_parent()

    def start_parent(self) -> subprocess.Popen[bytes]:
        words = f"--on slurm --shares {self.shares} --retries 60 --jobs 1 --json storm.json"
        return self.toy.start(*words.split(), log="parent")

    def inject(self) -> None:
        """Do one of them. Those that find nothing to hit are not counted."""
        self.start_nodes(time.monotonic())
        name = self.random.choice([n for n in dir(self) if n.startswith("_inject_")])
        at = time.time()
        if getattr(self, name)() is not False:
            self.done.append((name.removeprefix("_inject_"), at))

    def start_nodes(self, now: float) -> None:
        """Start the daemons of the nodes whose time has come."""
        for name in [name for name, at in self.back_at.items() if at <= now]:
            del self.back_at[name]
            self.cluster.start_node(name)

    def _inject_kill_a_worker(self):
        if not (workers := workers_of(self.toy.records)):
            return False
        self.kills += 1
        return kill(self.random.choice(workers))

    def _inject_kill_the_parent(self):
        kill(self.parent.pid)
        self.parent.wait()
        self.parent = self.start_parent()

    def _inject_kill_a_node(self):
        """Kill the daemon of a node for a moment, or for so long that Slurm runs the node's tasks elsewhere."""
        if not (running := sorted(self.cluster.nodes.keys() - self.back_at.keys())):
            return False
        name = self.random.choice(running)
        self.kills += CPUS
        self.cluster.kill_node(name)
        self.back_at[name] = time.monotonic() + self.random.choice([1.0, 20.0])
        return True

    def _inject_requeue(self):
        """Have Slurm end one task and queue it again, as an administrator does to empty a node."""
        words = ["squeue", "--noheader", "--states=RUNNING", "--partition=all", "--format=%A"]
        seen = subprocess.run(words, env=self.toy.environment, capture_output=True, text=True)
        if not (tasks := seen.stdout.split()):
            return False
        self.kills += 1
        words = ["scontrol", "requeue", self.random.choice(tasks)]
        return subprocess.run(words, env=self.toy.environment, capture_output=True).returncode == 0

    def _inject_preempt(self):
        self.kills += CPUS
        words = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 0.5"]
        subprocess.run(words, env=self.toy.environment, capture_output=True, check=True, cwd=self.toy.folder)

    def _inject_full_disk(self):
        self._for_a_moment("full")

    def _inject_slow_rename(self):
        self._for_a_moment("slow")

    def _for_a_moment(self, switch: str) -> None:
        self.toy.faults.switch(switch, on=True)
        time.sleep(self.random.uniform(0.2, 1.5))
        self.toy.faults.switch(switch, on=False)

    def _inject_duplicate_delivery(self):
        self.toy.start("--shard", f"{self.random.randrange(self.shares)}/{self.shares}", log="duplicates")


CPUS = 2
"""CPUs of a node, so also the number of its tasks."""
JOBS = 2
"""The most submissions that one worker grades at a time: one in a task of Slurm, two in a duplicate delivery."""
IN_CLASS = 48


@pytest.mark.slow
def test_after_a_hundred_random_faults_the_grades_are_those_of_an_undisturbed_run(tmp_path):
    """Several classes, one after the other, on nodes of which one never has a working bubblewrap."""
    needs("bwrap")
    injected: list[str] = []
    total = lost = 0
    with one_host_cluster(tmp_path / "slurm", nodes=4, cpus=CPUS) as cluster:
        for seed in range(100):
            if len(injected) >= 100:
                break
            toy = make_class(tmp_path / f"class{seed}", IN_CLASS, cluster.environment, unfit="n2")
            expected = undisturbed(toy)
            storm = Storm(toy, cluster, seed, shares=6)
            while storm.parent.poll() is None:
                time.sleep(storm.random.uniform(0.5, 3.0))
                storm.inject()
            storm.start_nodes(float("inf"))
            said = (toy.folder / "parent").read_text()
            assert storm.parent.returncode == 1, said
            wait_for(lambda toy=toy: not workers_of(toy.records))
            (toy.folder / "injected.json").write_text(json.dumps(storm.done))
            assert timeless((toy.folder / "storm.json").read_text()) == expected
            assert toy.grades() == expected
            assert len(list((toy.records / "90_toy").glob("*.json"))) == IN_CLASS, "one record for each submission"
            counts = toy.faults.executions()
            assert counts["accepted"] == IN_CLASS
            assert counts["thrown"] == 0, "claims keep two workers from one submission"
            total += IN_CLASS
            lost += counts["begun"] - counts["accepted"]
            assert counts["begun"] - counts["accepted"] <= storm.kills, "only a kill costs an execution"
            assert all(cut <= JOBS for cut in toy.faults.cut_off().values()), "and only those that were running"
            injected += [name for name, _ in storm.done]
            print(f"class {seed}: {len(storm.done)} faults, {dict(counts)}", flush=True)
            wait_until(cluster.is_idle, 60, "idle nodes")
    kinds = {name: injected.count(name) for name in sorted(set(injected))}
    print(f"{len(injected)} faults: {kinds}; {total} submissions, {lost} executions cut off")
    assert len(kinds) == 8
