"""Control groups: where they may be made, what is written to them, and what the kernel then holds."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.sandbox import cgroup

LIMITS = LabLimits(memory_mb=64, processes=8)
WHY_NOT = cgroup.why_not()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write what the kernel says about a machine's control groups, and find the place on it."""

    def find(groups: str, mounts: list[str], **files: str) -> cgroup._Place:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        proc = {"cgroup": groups, "mountinfo": "\n".join(line.replace("TOP", str(tmp_path)) for line in mounts)}
        monkeypatch.setattr(cgroup, "_PROC", tmp_path / "proc")
        (tmp_path / "proc").mkdir()
        for name, text in proc.items():
            (tmp_path / "proc" / name).write_text(text)
        return cgroup._find.__wrapped__()

    return find


def mount(root: str, target: str, kind: str, options: str) -> str:
    return f"30 23 0:26 {root} {target} rw,nosuid - {kind} cgroup {options}"


V2 = [mount("/", "TOP", "cgroup2", "rw")]


def test_version_1_has_a_place_for_each_controller(machine, tmp_path):
    """Each at the group that this process is in, seen from the mount; a container mounts a group as its root."""
    groups = "5:pids:/\n4:memory:/docker/abc/x\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"
    mounts = [
        mount("/", "TOP/pids", "cgroup", "rw,pids"),
        mount("/docker/abc", "TOP/memory", "cgroup", "rw,memory"),
        mount("/docker/abc", "TOP/cpu", "cgroup", "rw,cpu,cpuacct"),
    ]
    place = machine(groups, mounts)
    assert place == cgroup._Place(1, (tmp_path / "memory/x", tmp_path / "pids", tmp_path / "cpu"))


def test_version_2_uses_the_nearest_group_that_hands_its_controllers_down(machine, tmp_path):
    files = {
        "cgroup.subtree_control": "cpu memory pids",
        "cgroup.procs": "1",
        "user__cgroup.subtree_control": "cpu memory pids",
        "user__cgroup.procs": "",
        "user__me__cgroup.subtree_control": "memory pids",
        "user__me__cgroup.procs": "7",
    }
    assert machine("0::/user/me\n", V2, **files) == cgroup._Place(2, (tmp_path / "user",))


def test_version_2_takes_over_a_group_that_was_given_to_it(machine, tmp_path):
    """As `systemd-run -p Delegate=yes` gives one: its processes move down, for a group with members hands nothing."""
    files = {
        "scope__cgroup.controllers": "cpu memory pids",
        "scope__cgroup.procs": "",
        "scope__cgroup.subtree_control": "",
    }
    assert machine("0::/scope\n", V2, **files) == cgroup._Place(2, (tmp_path / "scope",))
    assert (tmp_path / "scope/cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (tmp_path / "scope/threeloops-grader").is_dir()


def test_a_group_without_the_controllers_is_no_place(machine):
    with pytest.raises(cgroup.NoGroups, match="may not make control groups"):
        machine("0::/scope\n", V2, **{"scope__cgroup.controllers": "memory"})


def test_a_machine_without_control_groups_says_so(machine):
    with pytest.raises(cgroup.NoGroups, match="no control groups are mounted"):
        machine("", [])


@pytest.mark.parametrize(("jobs", "cores"), [(1, 8), (2, 4), (8, 1), (64, 1)])
def test_the_cores_are_divided_among_the_submissions_that_run_at_a_time(monkeypatch, jobs, cores):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert cgroup._settings(2, LIMITS, jobs)["cpu.max"] == f"{cores * 100_000} 100000"
    assert cgroup._settings(1, LIMITS, jobs)["cpu.cfs_quota_us"] == str(cores * 100_000)


@pytest.fixture
def group(monkeypatch):
    """A real group of one of many submissions, gone at the end."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    made = cgroup.make(LIMITS, jobs=1000)
    try:
        yield made
    finally:
        made.end()
        assert not any(folder.exists() for folder in made.folders)


def member(group, work):
    """A process of the group that does `work`; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            for entry in group.entries():
                os.write(entry, b"0")
            work()
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize(
    ("version", "files", "exceeded", "victim"),
    [
        (2, {"memory.events": "max 9\noom 1\noom_kill 1\n"}, True, False),
        (2, {"memory.events": "max 0\noom 0\noom_kill 1\n"}, False, True),
        (2, {"memory.events": "max 3\noom 0\noom_kill 0\n"}, False, False),
        (1, {"memory.oom_control": "oom_kill 2\n", "memory.max_usage_in_bytes": "67108864\n"}, True, False),
        (1, {"memory.oom_control": "oom_kill 1\n", "memory.max_usage_in_bytes": "65536000\n"}, True, False),
        (1, {"memory.oom_control": "oom_kill 1\n", "memory.max_usage_in_bytes": "50000000\n"}, False, True),
        (1, {"memory.oom_control": "oom_kill 0\n", "memory.max_usage_in_bytes": "67108864\n"}, False, False),
        (1, {}, False, False),
    ],
)
def test_a_shortage_of_the_whole_machine_is_not_the_submissions_fault(tmp_path, version, files, exceeded, victim):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = cgroup.Group(version, (tmp_path,), memory_mb=64)
    assert (bool(group.exceeded()), group.is_victim()) == (exceeded, victim)


@pytest.mark.cgroup
def test_memory_beyond_the_limit_ends_the_process_and_is_named(group):
    _, status = os.waitpid(member(group, lambda: bytearray(os.urandom(1 << 20)) * 200), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert group.exceeded() == "it used more than 64 MiB of memory" and not group.is_victim()


@pytest.mark.cgroup
def test_memory_within_the_limit_does_not(group):
    _, status = os.waitpid(member(group, lambda: bytearray(os.urandom(1 << 20)) * 20), 0)
    assert (status, group.exceeded()) == (0, "")


@pytest.mark.cgroup
def test_processes_beyond_the_limit_cannot_be_started(group):
    reading, writing = os.pipe()

    def fork():
        started = 0
        try:
            while os.fork():
                started += 1
            signal.pause()
        except OSError:
            os.write(writing, bytes([started]))

    os.waitpid(member(group, fork), 0)
    assert os.read(reading, 1) == bytes([LIMITS.processes - 1])


@pytest.mark.cgroup
def test_processes_in_sessions_of_their_own_share_one_quota(group):
    """Kernels that count a share for each session count this group once. A twentieth of a core, so that it is held
    back on however busy a machine."""
    name, quota = ("cpu.max", "5000 100000") if group.version == 2 else ("cpu.cfs_quota_us", "5000")
    (group.folders[-1] / name).write_text(quota)

    def spin():
        for _ in range(LIMITS.processes - 2):
            if os.fork() == 0:
                os.setsid()
                break
        while True:
            pass

    spinning = member(group, spin)
    deadline = time.monotonic() + 60
    while not int(cgroup._pairs(group.folders[-1] / "cpu.stat")["nr_throttled"]):
        assert time.monotonic() < deadline, "several busy processes were never held back"
        os.sched_yield()
    os.kill(spinning, signal.SIGKILL)
    os.waitpid(spinning, 0)


@pytest.mark.cgroup
def test_the_groups_of_a_killed_run_are_removed_by_the_next(group):
    gone = os.fork()
    if gone == 0:
        cgroup.make(LIMITS, jobs=1000)
        os._exit(0)
    os.waitpid(gone, 0)
    left = [found for folder in group.folders for found in folder.parent.glob(f"threeloops-{gone}-*")]
    assert left
    cgroup._sweep(cgroup._find())
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in group.folders)


@pytest.mark.cgroup
def test_the_groups_of_an_earlier_process_of_the_same_number_are_removed(group):
    """As in a container, where the run that was killed and the next one are both number 1."""
    left = [folder.with_name(f"threeloops-{os.getpid()}-1-{folder.name[-1]}") for folder in group.folders]
    for folder in left:
        folder.mkdir()
    cgroup._sweep(cgroup._find())
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in group.folders)


@pytest.mark.cgroup
def test_the_group_of_a_live_run_is_kept_before_a_process_has_joined_it(monkeypatch):
    """Also that of a run in another container, whose number means no process here. Joining a group that was removed
    would fail with ENODEV."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: gone)
        made = cgroup.make(LIMITS, jobs=1000)
    try:
        cgroup._sweep(cgroup._find())
        _, status = os.waitpid(member(made, lambda: None), 0)
        assert (status, [folder.exists() for folder in made.folders]) == (0, [True] * len(made.folders))
    finally:
        made.end()


def test_a_group_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    place, opened = cgroup._Place(2, (tmp_path,)), os.open

    def sweep_first(path, flags):
        monkeypatch.setattr(os, "open", opened)
        cgroup._sweep(place)
        assert not folder.exists()
        return opened(path, flags)

    folder = tmp_path / "threeloops-1-0"
    monkeypatch.setattr(os, "open", sweep_first)
    lock = cgroup._make_locked(folder)
    cgroup._sweep(place)
    assert folder.exists()
    os.close(lock)
    cgroup._sweep(place)
    assert not folder.exists()


@pytest.mark.cgroup
def test_submissions_that_start_at_the_same_time_all_get_groups():
    """The first to ask finds out whether there are any; the others wait for the answer."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    cgroup._why_not.cache_clear()
    together = threading.Barrier(4)

    def make():
        together.wait(60)
        return cgroup.make(LIMITS, 4)

    with ThreadPoolExecutor(4) as threads:
        made = [future.result() for future in [threads.submit(make) for _ in range(4)]]
    for group in filter(None, made):
        group.end()
    assert None not in made


def test_a_group_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    """The folder of a group on an ordinary file system has none of the kernel's files."""
    monkeypatch.setattr(cgroup, "why_not", lambda: None)
    monkeypatch.setattr(cgroup, "_find", lambda: cgroup._Place(2, (tmp_path,)))
    with pytest.raises(FileNotFoundError, match=r"no memory\.max"):
        cgroup.make(LIMITS, 1)
    assert list(Path(tmp_path).iterdir()) == []
