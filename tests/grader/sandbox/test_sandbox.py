"""The sandbox from outside: what bubblewrap is told, what the kernel refuses, and what is gone when grading ends."""

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from grading import QUICK, SANDBOXES, fresh_course, needs, processes_of, submission
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.sandbox import bwrap, pool, seccomp
from threeloops_grader.sandbox.warmup import IdleSteps

CHECK = """
import os
def written(path):
    try:
        open(path, "w").close()
        return [path]
    except OSError as error:
        return [] if error.errno == 30 else [error.errno]
print(sum((written(f"{folder}/x") for folder in ("", "/etc", "/dev", "/home", "/lab", "/venv")), []))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("sandbox")) as lab:
        yield lab


@pytest.fixture
def own_lab(tmp_path):
    """That of a test that leaves nothing; it closes the others' pools as well."""
    with fresh_course(tmp_path) as lab:
        yield lab


def test_nothing_that_submissions_share_can_be_written(tmp_path):
    """Not even by the one who starts them: what one submission left, the next would find."""
    needs("bwrap")
    done = subprocess.run(bwrap.command(tmp_path, ["-c", CHECK]), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_copies_of_the_course_are_hidden_wherever_they_lie(tmp_path, monkeypatch):
    """A course in a bound folder, a library that pip copied: neither shows a withheld module's text."""
    needs("bwrap")
    for name in ("course/solutions", "packages/threeloops", "packages/threeloops_grader", "packages/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "answer.py").write_text("42")
    interpreter, binds = bwrap._interpreter()
    monkeypatch.setattr(bwrap, "CODE", tmp_path / "course")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    monkeypatch.setattr(bwrap, "_interpreter", lambda: (interpreter, [*binds, (str(tmp_path), "/site/0")]))
    look = "import os; print(sorted(d for d, _, files in os.walk('/site') if 'answer.py' in files))"
    done = subprocess.run(bwrap.command(tmp_path, ["-c", look]), capture_output=True, text=True, check=True)
    assert done.stdout == "['/site/0/packages/other']\n"


def test_the_environment_of_the_grader_stays_outside(tmp_path, monkeypatch):
    needs("bwrap")
    monkeypatch.setenv("THREELOOPS_TOKEN", "TOKEN")
    look = "import os; print(sorted(os.environ))"
    done = subprocess.run(bwrap.command(tmp_path, ["-c", look]), capture_output=True, text=True, check=True)
    assert "THREELOOPS_GRADED" in done.stdout
    assert "THREELOOPS_TOKEN" not in done.stdout


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("is_rank", [False, True])
def test_the_filter_jumps_forward_and_ends(machine, is_rank):
    code = seccomp._program(machine, is_rank=is_rank)
    assert len(code) < 256
    for at, (operation, yes, no, _) in enumerate(code):
        assert at + 1 + max(yes, no) < len(code) or operation == 0x06
    assert [c[0] for c in code[-5:]] == [0x06] * 5


CALLS = """
import ctypes, errno, mmap, os
from threeloops_grader.sandbox import confine, seccomp
confine.prctl(confine.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install()
refused = 0
for way in (lambda: os.memfd_create("x"), lambda: mmap.mmap(-1, 4096)):
    try:
        way()
    except PermissionError:
        refused += 1
kept = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with open("shared", "w+b") as file:
    file.truncate(4096)
    mmap.mmap(file.fileno(), 4096)
print(refused, os.system("true"), bytes(64 << 20)[0])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this architecture")
def test_memory_that_nobody_is_charged_for_is_refused_and_other_memory_is_not(tmp_path):
    done = subprocess.run([sys.executable, "-c", CALLS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2 0 0\n"


def test_what_is_imported_in_idle_time_never_comes_before_a_request_that_waits_nor_for_one_submission_alone():
    ours, theirs = socket.socketpair()
    taken = []
    asks = lambda: (taken.append(2), ours.send(b"request"))  # noqa: E731
    steps = IdleSteps(lambda: taken.append(1), asks, lambda: taken.append(3))
    with ours, theirs:
        for expected in ([], [1, 2], [1, 2]):
            steps.after_fork(theirs)
            assert taken == expected
        theirs.recv(16)
        for _ in range(2):
            steps.after_fork(theirs)
            assert taken == [1, 2, 3]


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_the_first_submission_too_may_use_what_is_imported_in_idle_time(lab, sandbox):
    """The second is forked without it as well, and the third finds pyplot; torch is for labs that import it."""
    needs(sandbox)
    plots = "import matplotlib.pyplot as plt\nplt.figure()\n"
    compares = "import torch\nx = torch.ones(1)\ntorch.testing.assert_close(x, x)\n"
    pool.close_pools()
    for uses in (plots + compares, "", plots):
        answer = f"{uses}def mean(values):\n    return 0.0\n"  # a cell of the student's own may fail unnoticed
        record = grade_notebook(submission(lab, mean=answer), lab, "ada", Options(sandbox=sandbox, limits=QUICK))
        assert (record.score, record.notes) == (60.0, [])


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
raise Exception("home: " + os.environ["HOME"])
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_submission_ends_with_its_session(lab, sandbox):
    """Its daemons and its home too, although the warm processes live on."""
    needs(sandbox)
    grade_notebook(submission(lab), lab, "warm", Options(sandbox=sandbox, limits=QUICK))
    warm = {line.partition(":")[0] for line in processes_of(lab.root.parent)}
    record = grade_notebook(submission(lab, mean=DAEMON), lab, "ada", Options(sandbox=sandbox, limits=QUICK))
    home = Path(record.notes[0].partition("home: ")[2].split()[0])
    deadline = time.monotonic() + 300
    while {line.partition(":")[0] for line in processes_of(lab.root.parent)} - warm or home.exists():
        assert time.monotonic() < deadline, home
        os.sched_yield()


FOLDERS = """
import os
raise Exception(f"folders: {get_ipython().ipython_dir} {os.environ['MPLCONFIGDIR']}")
"""


def test_without_a_sandbox_no_folder_is_shared_with_other_users(lab):
    """In a folder that is another user's, IPython and matplotlib would make one in /tmp each time, and leave it."""
    record = grade_notebook(submission(lab, mean=FOLDERS), lab, "ada", Options(sandbox="none", limits=QUICK))
    folders = record.notes[0].partition("folders: ")[2].split()[:2]
    assert [Path(folder).parent for folder in folders] == [pool.pool(lab, "none").folder] * 2


FORKS = """
import os, time
for n in range(100):
    try:
        if os.fork() == 0:
            time.sleep(3600)
    except OSError:
        break
raise Exception(f"forks: {n}")
"""


def test_each_submission_has_its_own_processes_to_use_up(lab):
    """One that forks until it may not leaves its neighbour, of the same user on the same machine, all of its own."""
    needs("bwrap")
    greedy = pool.pool(lab, "bwrap").connect(QUICK)
    try:
        greedy.grader.deadline = time.monotonic() + 600
        greedy.grader.send({"op": "student", "source": FORKS, "seconds": 300.0})
        assert greedy.grader.receive()[0]["message"] == f"forks: {QUICK.processes - 1}"
        record = grade_notebook(submission(lab, mean=FORKS), lab, "ada", Options(sandbox="bwrap", limits=QUICK))
        assert f"forks: {QUICK.processes - 1}" in record.notes[0]
    finally:
        greedy.close()


HONEST = """
import multiprocessing, os, socket, subprocess, tempfile
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

mp = multiprocessing.get_context("fork")  # no longer the default on Python 3.14

def square(x):
    return x * x

def rank(number, port, total):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    x = torch.full((1000,), float(number + 1))
    dist.all_reduce(x)
    total[number] = x.sum()
    dist.destroy_process_group()

with mp.Pool(2) as workers:
    assert workers.map(square, range(4)) == [0, 1, 4, 9]
batches = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=2)
assert sum(float(x.sum()) for (x,) in batches) == 28.0
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
shared = mp.Array("d", 2)
ranks = [mp.Process(target=rank, args=(n, port, shared)) for n in range(2)]
[p.start() for p in ranks]
[p.join() for p in ranks]
assert list(shared) == [3000.0, 3000.0], list(shared)
assert torch.ones(3).share_memory_().sum() == 3
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(1 << 20))
assert socket.gethostbyname("localhost") == "127.0.0.1"
assert subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() == str(os.getuid())
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_honest_work_is_not_in_the_way_of_the_limits(lab, sandbox):
    """Processes, shared memory, ranks over loopback, temporary files, commands."""
    needs(sandbox)
    record = grade_notebook(submission(lab, rescale=HONEST), lab, "ada", Options(sandbox=sandbox))
    assert record.notes == []


def test_a_pool_that_cannot_start_leaves_nothing(own_lab, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(bwrap.SandboxError, match="side did not start"):
        pool.pool(own_lab, "none")


def test_a_process_that_crashes_at_its_start_is_reported_while_the_other_one_still_starts(own_lab, monkeypatch):
    python = sys.executable

    def start(self, name, words, variables, confined_to=None):
        wait = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"
        ours, theirs = socket.socketpair()
        code = wait if name == "student_process" else "raise SystemExit('a module is missing')"
        with theirs, (self.folder / f"log{len(self._processes)}").open("wb") as log:
            argv = [python, "-c", code, str(theirs.fileno())]
            self._processes.append(subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=log))
        self._controls.append(ours)

    monkeypatch.setattr(pool.Pool, "_start", start)
    with pytest.raises(bwrap.SandboxError, match="the grader's side did not start: a module is missing"):
        pool.Pool(own_lab, "none")
