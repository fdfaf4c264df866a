"""What a script does besides communication works as under torchrun: modules, threads, processes, and its end."""

import os
import select
import sys

import pytest
from threeloops.training.cluster import Cluster, RankFailed, script


def run(tmp_path, text, **options):
    (tmp_path / "train.py").write_text(text)
    return Cluster(2, **options).run(script(tmp_path / "train.py"), seconds=60).printed.splitlines()


def test_threads_and_processes_are_waited_for_and_exit_functions_called(tmp_path):
    printed = run(
        tmp_path,
        """
import atexit, logging, multiprocessing, threading
import torch.distributed as dist

def work(event):
    event.wait()
    print("the thread ends", flush=True)

atexit.register(print, "exit function")
event = threading.Event()
threading.Thread(target=work, args=(event,)).start()
multiprocessing.Process(target=print, args=("the process ends",), kwargs={"flush": True}).start()
dist.barrier()
print("the script ends", flush=True)
threading.Timer(0, event.set).start()
""",
    )
    for rank in range(2):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in printed if line.startswith(f"[rank {rank}]")]
        assert sorted(mine) == ["exit function", "the process ends", "the script ends", "the thread ends"]
        assert mine.index("the script ends") < mine.index("the thread ends") < mine.index("exit function")


def test_a_module_beside_the_script_goes_before_one_that_is_imported_already(tmp_path):
    (tmp_path / "profile.py").write_text("NAME = 'beside the script'\n")
    printed = run(tmp_path, "import profile\nprint(profile.NAME)\n")
    assert printed == ["[rank 0] beside the script", "[rank 1] beside the script"]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("sys.exit(3)", r"train.py ended with exit status 3 \(train.py:2\)"),
        ("os._exit(4)", "rank 0: its process ended without a word, with exit status 4"),
        ("os.kill(os.getpid(), 9)", "rank 0: its process ended without a word, by SIGKILL"),
    ],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_the_end_of_a_rank_is_named(tmp_path, end, message, fresh):
    with pytest.raises(RankFailed, match=message):
        run(tmp_path, f"import os, sys\n{end}\n", fresh=fresh)


def test_a_traceback_has_the_lines_of_the_script_alone(tmp_path):
    with pytest.raises(RankFailed) as failure:
        run(tmp_path, "def load():\n    raise ValueError('no data')\n\nload()\n")
    files = [line for line in str(failure.value).splitlines() if line.startswith("  File")]
    assert len(files) == 2
    assert all("train.py" in line for line in files)


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is of Linux")
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_no_process_that_a_rank_has_started_outlives_the_run(tmp_path, fails, fresh):
    text = """
import multiprocessing, subprocess, sys, time
multiprocessing.Process(target=time.sleep, args=(1000,), daemon=True).start()
process = subprocess.Popen(["sleep", "1000"])
print(process.pid, multiprocessing.active_children()[0].pid, flush=True)
"""
    if fails:
        (tmp_path / "train.py").write_text(f"{text}raise ValueError")
        with pytest.raises(RankFailed) as failure:
            Cluster(2, fresh=fresh).run(script(tmp_path / "train.py"), seconds=60)
        printed = "".join(failure.value.__notes__).splitlines()
    else:
        printed = run(tmp_path, text, fresh=fresh)
    processes = [int(word) for line in printed for word in line.split("] ")[1].split()]
    assert len(processes) == 4
    for process in processes:
        assert ended(process)


def ended(process):
    """Whether it has ended, or does so now."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)
