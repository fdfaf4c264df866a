"""Ranks in the sandbox and the router in the grader: a test cell sees the same run as beside the student's code, and a
hostile rank program costs its own exercise only."""

import os
import textwrap

import pytest
from grading import SANDBOXES, needs
from sides import Walled, course_fixture, sides, sides_fixture
from toy_course import make_tensor_course

SETUP = """
import torch
import torch.distributed as dist
from threeloops.lab import check
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.training.cluster import Cluster, SlowRank, ask, compute, now, uniform


def each(function, values):
    return function(values[dist.get_rank()])
"""

RING = """
def f(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    compute(1e-3, "mine")
    chunks = list(x.clone().tensor_split(size))
    for step in range(2 * size - 2):
        into = torch.empty_like(chunks[(rank - step - 1) % size])
        sent = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(into, (rank - 1) % size)
        sent.wait()
        if step < size - 1:
            into += chunks[(rank - step - 1) % size]
        chunks[(rank - step - 1) % size] = into
    return torch.cat(chunks)
"""


lab = course_fixture(make_tensor_course)
run = sides_fixture(SETUP)


def test_a_ring_has_its_values_bytes_messages_and_time(run):
    done = run(
        RING,
        """
        for size, count in ((2, 10), (4, 32), (5, 12)):
            values = [torch.arange(count, dtype=torch.float32) * (r + 1) for r in range(size)]
            seen = on_cluster(Cluster(uniform(size, 1e-5, 1e9)), each, f, values)
            for result in seen.results:
                check.close(result, sum(values), what="the sum")
            chunk = -(-count // size) * 4
            assert len(seen.messages) == 2 * size * (size - 1)
            if count % size == 0:
                assert abs(seen.seconds - 1e-3 - 2 * (size - 1) * (1e-5 + chunk / 1e9)) < 1e-12
            assert [s.what for s in seen.spans] == ["mine"] * size
            assert sum(s.end - s.start for s in seen.spans) == size * 1e-3
        slow = on_cluster(Cluster(2, [SlowRank(0, 3.0)]), each, f, [torch.ones(2)] * 2)
        assert slow.clocks[0] > 3e-3
        """,
    )
    assert done.ok, done


@pytest.mark.parametrize(
    "names",
    [
        "def each(function, values):\n    return torch.full((3,), 3.0)",
        "dist = torch = None",
    ],
)
def test_what_an_answer_calls_as_a_setup_cell_does_changes_nothing_of_it(lab, names):
    """A test runs the programs of the setup cells as they were then, with the names that they were written with."""
    answer = f"{names}\n\ndef f(x):\n    return x"
    test = "assert on_cluster(Cluster(2), each, f, [torch.ones(3), torch.zeros(3)]).results[0].tolist() == [1.0] * 3"
    with sides(lab, SANDBOXES[0], SETUP) as run:
        assert run(answer, test).ok


def test_torchs_collectives_run_there_too(run):
    done = run(
        """
def f(x):
    y = x.t().contiguous()
    dist.all_reduce(y, async_op=True).wait()
    return y, {'rank': dist.get_rank()}
""",
        """
        seen = on_cluster(Cluster(3), f, torch.arange(6.0).reshape(2, 3))
        for rank, (y, said) in enumerate(seen.results):
            assert torch.equal(y, 3 * torch.arange(6.0).reshape(2, 3).t()) and said == {"rank": rank}
        assert [s.what for s in seen.spans] == ["all_reduce"] * 3
        """,
    )
    assert done.ok, done


@pytest.mark.parametrize(
    ("student", "error", "message"),
    [
        ("def f(x):\n    dist.recv(x, 1 - dist.get_rank())", "Deadlock", "rank 0 waits"),
        ("def f(x):\n    if dist.get_rank():\n        raise KeyError('no key')", "RankFailed", "no key"),
        ("def f(x):\n    dist.all_reduce(torch.ones(1 + dist.get_rank()))", "Mismatch", "rank 1 calls all_reduce of 2"),
        ("def f(x):\n    raise NotImplementedError", "NotImplementedError", ""),
        ("def f(x):\n    dist.send(x, 1) if dist.get_rank() == 0 else None", "Deadlock", "for rank 1 to receive"),
        ("def f(x):\n    dist.isend(x, 1) if dist.get_rank() == 0 else None", "Unfinished", "never received"),
    ],
)
def test_what_goes_wrong_on_a_rank_reaches_the_test(run, student, error, message):
    done = run(student, "on_cluster(Cluster(2), f, torch.ones(3))")
    assert not done.ok and done.error == error and message in done.message


def test_what_a_rank_says_counts_as_the_students_words(lab):
    """Otherwise a check that repeats it would show the inputs of hidden tests."""
    needs("none")
    student = "def f(x):\n    raise ValueError(f'{x.tolist()}' + '\\nsecond line')"
    test = """
        try:
            on_cluster(Cluster(2), f, torch.tensor([77.0, 88.0]))
        except Exception as error:
            check.true(False, "a title\\n    " + "\\n    ".join(str(error).splitlines()))
    """
    side = Walled(lab, "none", SETUP, student)
    try:
        done = side.test(textwrap.dedent(test))
    finally:
        side.close()
    assert done.error == "CheckFailed" and "[77.0, 88.0]" in done.message and "[77.0, 88.0]" in done.quoted
    assert "77" not in done.unquoted and "second" not in done.unquoted


@pytest.mark.parametrize("said", ["77.0\\r88.0", "7\\n7\\n.\\n0", "77.0\\x0b88.0"])
@pytest.mark.parametrize("repeated", ["str(error)", "repr(error)", "' | '.join(str(error).split())"])
def test_a_check_that_repeats_them_in_another_way_keeps_its_title_only(lab, said, repeated):
    needs("none")
    test = f"""
        try:
            on_cluster(Cluster(2), f, 1)
        except Exception as error:
            check.true(False, "a title\\n" + {repeated})
    """
    side = Walled(lab, "none", SETUP, f"def f(x):\n    raise ValueError('{said}')")
    try:
        done = side.test(textwrap.dedent(test))
    finally:
        side.close()
    assert done.error == "CheckFailed" and "7" in done.message and "7" not in done.unquoted, done


def test_they_are_the_students_words_also_in_an_error_that_the_test_raises_later(lab):
    needs("none")
    test = """
        try:
            on_cluster(Cluster(2), f, 1)
        except Exception as error:
            kept = str(error)
        check.true(False, f"a title\\n{kept}\\nand an end")
    """
    side = Walled(lab, "none", SETUP, "def f(x):\n    raise ValueError('77.0')")
    try:
        done = side.test(textwrap.dedent(test))
    finally:
        side.close()
    assert "77.0" in done.quoted and "77" not in done.unquoted, done
    assert "a title" in done.unquoted and "and an end" in done.unquoted


def test_a_rank_that_names_a_file_is_not_shown_what_is_in_it(lab, tmp_path):
    """The message is put together where the hidden tests are."""
    needs("none")
    (tmp_path / "hidden.py").write_text("a secret\n")
    student = f"""
    def f(x):
        from threeloops.training.cluster.programs import child
        child._said = lambda error: '  File "{tmp_path / "hidden.py"}", line 1, in f\\nValueError: x'
        raise ValueError
    """
    side = Walled(lab, "none", SETUP, textwrap.dedent(student))
    try:
        done = side.test("on_cluster(Cluster(2), f, 1)")
    finally:
        side.close()
    assert "hidden.py" in done.message and "secret" not in done.message


def test_a_function_of_a_test_cell_does_not_travel(lab):
    needs("none")
    side = Walled(lab, "none", SETUP, "def f(x): return x")
    try:
        done = side.test("def hidden(x): return x\non_cluster(Cluster(2), hidden, 1)")
        assert done.error == "TypeError" and "define it in a setup cell" in done.message, done
    finally:
        side.close()


EARLY = """
class Early:
    def __init__(self, text):
        self.text = text
    def __reduce__(self):
        return exec, (self.text, {})
"""
"""Code that a rank runs when it gets its program."""

HIDES = f"""
import mmap
import numpy
{EARLY}

early = Early("from threeloops.training.cluster.programs import child; child.settle = print")  # no word to the kernel


def f(way):
    early
    dist.barrier()
    if way == "tensors":
        kept = torch.ones(16 << 18)
    elif way == "many small tensors":
        kept = [torch.ones(1 << 10) for _ in range(4 << 10)]
    elif way == "arrays":
        kept = numpy.ones(16 << 17)
    elif way == "bytes":
        kept = bytearray(b"x") * (16 << 20)
    elif way == "mapped":
        kept = mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE)
        kept.write(b"x" * (16 << 20))
    else:
        torch.ones(16 << 18).sum()
    dist.barrier()
"""


def test_the_memory_that_a_rank_takes_is_seen_from_outside(run):
    honest = HIDES.replace("child.settle = print", "pass")
    done = run(
        honest,
        """
        for way in ("tensors", "many small tensors", "arrays", "bytes", "for a moment"):
            seen = on_cluster(Cluster(2), f, way, memory=True)
            assert len(seen.memory) == 2
            for taken in seen.memory:
                assert 15 << 20 < taken < 18 << 20, f"{way}: {taken:,} bytes"
        assert on_cluster(Cluster(2), f, "tensors").memory == ()
        """,
    )
    assert done.ok, done.message
    done = run(
        HIDES,
        """
        for way in ("tensors", "mapped"):
            assert min(on_cluster(Cluster(2), f, way, memory=True).memory) > 15 << 20, way
        """,
    )
    assert done.ok, done.message


def test_a_measurement_above_the_limit_of_the_test_is_repeated_twice(run):
    """When memory is short, pages of libraries that the kernel has evicted may count."""
    done = run(
        "def f(x):\n    ask('began')\n    y = torch.ones(16 << 18)",
        """
        for limit, runs in ((True, 1), (64 << 20, 1), (8 << 20, 3)):
            began = []
            seen = on_cluster(Cluster(1), f, 1, memory=limit, served={"began": began.append})
            assert (len(began), len(seen.memory)) == (runs, 1), (limit, began)
        """,
    )
    assert done.ok, done.message


def test_in_the_sandbox_a_rank_cannot_make_the_kernel_forget_its_memory(lab):
    needs("bwrap")
    student = """
    import contextlib
    def f():
        dist.barrier()
        torch.ones(16 << 18).sum()
        with contextlib.suppress(OSError):
            open("/proc/self/clear_refs", "w").write("5")
        dist.barrier()
    """
    side = Walled(lab, "bwrap", SETUP, textwrap.dedent(student))
    try:
        done = side.test("assert min(on_cluster(Cluster(2), f, memory=True).memory) > 15 << 20")
    finally:
        side.close()
    assert done.ok, done.message


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    "program",
    [
        """
        import os, time
        def f():
            if os.fork() == 0:
                kept = torch.ones(16 << 18)
                time.sleep(1000)
            dist.barrier()
        """,
        """
        import os
        from threeloops.training.cluster.programs.actor import ActorSocket
        from threeloops.training.cluster.programs.child import current_rank
        end = ActorSocket.end
        def f():
            def gone(self, *arguments, **options):
                end(self, *arguments, **options)
                os._exit(0)
            if dist.get_rank() == 0:
                ActorSocket.end = gone
            dist.barrier()
            if dist.get_rank():
                for _ in range(500):  # rounds of messages, in which the other process ends
                    current_rank().main.pause()
        """,
        EARLY
        + """
early = Early('''
import torch
from threeloops.training.cluster.programs import child
child.kept = []
child.settle = lambda: child.kept.append(torch.ones(16 << 18))
''')
def f():
    early
    from threeloops.training.cluster.programs import child
    child.kept[0][:4 << 18] = 2
""",
    ],
    ids=["another process has it", "the rank is gone", "the rank had it before"],
)
def test_a_rank_whose_memory_cannot_be_told_fails(lab, sandbox, program):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, textwrap.dedent(program))
    try:
        done = side.test("on_cluster(Cluster(2), f, memory=True)")
        assert not done.ok and "its memory was measured" in done.message, done
    finally:
        side.close()


HOSTILE = {
    "lies about what it sends": """
        def f(x):
            from threeloops.training.cluster.programs import actor
            from threeloops.training.cluster.machine import calls

            actor.Send = lambda handle, to, channel, tag, size, at, where: calls.Send(
                handle, to, channel, tag, size + 1000, at, where)
            return good(x)
        """,
    "claims another time": """
        from threeloops.training.cluster.programs.child import current_rank

        def f(x):
            current_rank().main.now = -1.0
            return good(x)
        """,
    "says that time stands still": """
        def f(x):
            from threeloops.training.cluster.programs import actor

            actor.ActorSocket.charge = lambda self, seconds, what="": None
            return good(x)
        """,
    "sends into its sockets what is no call": """
        import os
        def f(x):
            for number in range(3, 300):
                try:
                    os.write(number, b"\\xff" * 1000)
                except OSError:
                    pass
            return good(x)
        """,
    "forks, prints and dies": """
        import os, sys
        def f(x):
            for _ in range(3):
                if os.fork() == 0:
                    import time
                    time.sleep(1000)
            print("x" * 5_000_000)
            os.kill(os.getpid(), 9)
        """,
    "floods": """
        def f(x):
            y = torch.empty(1 << 20)
            for _ in range(10**9):
                dist.isend(y, 1 - dist.get_rank()).wait()
        """,
    "pickles another program than that of the setup cell": """
        from threeloops.training.cluster.processes import pickled
        to_bytes = pickled.to_bytes
        pickled.to_bytes = lambda program, arguments, label: to_bytes(f, (torch.ones(8),), label)
        def f(x):
            return x + 1
        """,
    "pickles no program": """
        from threeloops.training.cluster.processes import pickled
        pickled.to_bytes = lambda *arguments: 7
        """,
    "announces more bytes than there is memory": """
        import os, struct
        def f(x):
            for number in range(3, 300):
                try:
                    os.write(number, struct.pack("<IQ", 0, 1 << 50))
                except OSError:
                    pass
            return good(x)
        """,
    "returns what is no plain data": """
        from threeloops.training.cluster.programs import child
        def f(x):
            current = child.current_rank()
            current.finish()
            current.main.end(result=b"\\xff" * 100)
            current.main.resume()
        """,
}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_rank_program_costs_its_own_exercise_only(lab, sandbox, attack):
    needs(sandbox)
    test = """
        values = [torch.ones(8), torch.ones(8)]
        seen = on_cluster(Cluster(uniform(2, 1e-5, 1e9)), each, f, values, seconds=20)
        assert sum(s.end - s.start for s in seen.spans) == 2e-3, "charges"
        assert abs(seen.seconds - 1e-3 - 2 * (1e-5 + 16 / 1e9)) < 1e-12, "time"
        assert [m.size for m in seen.messages] == [16] * 4, "bytes"
        for result in seen.results:
            check.close(result, 2 * torch.ones(8))
    """
    student = RING.replace("def f(", "def good(") + "\nf = good\n" + textwrap.dedent(HOSTILE[attack])
    side = Walled(lab, sandbox, SETUP, student)
    try:
        done = side.test(textwrap.dedent(test))
        assert not done.ok, attack
    finally:
        side.close()
    fresh = Walled(lab, sandbox, SETUP, RING)
    try:
        done = fresh.test(textwrap.dedent(test))
        assert done.ok, done
    finally:
        fresh.close()


SIGNS = """
import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading


def tried(try_it):
    try:
        return try_it()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOENT):  # another fault would look like a refusal
            raise
        return "refused"


def lock(command):
    with open(torch.__file__, "rb") as file:
        return fcntl.fcntl(file, command, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0))


def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def fork_with_number():
    number = ctypes.c_int(-1)
    if libc_clone(0x1000 | 17, 0, ctypes.byref(number), 0, 0) == 0:
        os._exit(0)


def libc_clone(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    process = libc.syscall(56, *arguments)
    if process < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return process


def many_threads():
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(40)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        raise PermissionError(errno.EPERM, "no more threads") from None
    finally:
        end.set()


def f():
    words = (ctypes.c_int * 2)()
    context = ctypes.c_ulong()
    with open(torch.__file__, "rb") as file:
        ways = {
            "a lock of the file": lambda: fcntl.flock(file, fcntl.LOCK_SH),
            "a lock of the process": lambda: lock(fcntl.F_SETLK),
            "the lock of another": lambda: lock(fcntl.F_GETLK),
            "a watch": lambda: call("inotify_init1", 0),
            "a watch of a folder": lambda: fcntl.fcntl(os.open("/usr", os.O_RDONLY), fcntl.F_NOTIFY, 1),
            "what is cached": lambda: os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT),
            "a wake-up of others": lambda: call("syscall", 202, ctypes.byref(ctypes.c_int()), 1, 1),
            "whether others wait": lambda: call("syscall", 202, words, 12, 1, 0, ctypes.byref(words, 4), 0),
            "how long its data will live": lambda: fcntl.fcntl(file, 1036, struct.pack("Q", 2)),
            "what is cached, by evicting it": lambda: os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED),
            "which pages others have mapped": lambda: open("/proc/self/pagemap", "rb").read(8),
            "how many of them": lambda: open("/proc/self/smaps").read(),
            "whether its pages can move": lambda: call("syscall", 279, 0, 0, None, None, None, 2),
            "the number of a pipe": lambda: os.fstat(os.pipe()[0]).st_ino,
            "the number of a socket": lambda: os.fstat(socket.socket().detach()).st_ino,
            "the numbers of two": lambda: os.fstat(socket.socketpair()[0].detach()).st_ino,
            "the number of a process": lambda: os.fstat(os.pidfd_open(os.getpid())).st_ino,
            "the number of a new process": fork_with_number,
            "how many threads the others leave": many_threads,
            "how much of the others' reads is under way": lambda: call("syscall", 206, 1, ctypes.byref(context)),
            "a terminal": lambda: os.openpty(),
            "the memory of the machine": lambda: open("/proc/meminfo").read(),
            "its memory in another way": lambda: call("sysinfo", ctypes.create_string_buffer(512)),
            "its log": lambda: call("klogctl", 3, ctypes.create_string_buffer(512), 512),
            "the memory of its parent": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
            "huge pages of the machine": lambda: call("syscall", 9, None, 2 << 20, 3, 0x40022, -1, 0),
        }
        others = {
            "mincore": 27, "mbind": 237, "inotify_init": 253, "migrate_pages": 256, "cachestat": 451,
            "futex_wake": 454, "futex_requeue": 456,
        }
        ways |= {name: lambda number=number: call("syscall", number, 0, 0, 0, 0, 0) for name, number in others.items()}
        return [way for way, try_it in ways.items() if tried(try_it) != "refused"]
"""


def test_a_rank_can_leave_no_sign_for_another_and_see_none(lab):
    """Their namespaces are apart, but they share a kernel and the files of the system."""
    needs("bwrap")
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86_64")
    side = Walled(lab, "bwrap", SETUP, SIGNS)
    try:
        done = side.test("assert on_cluster(Cluster(2), f).results == ([], []), on_cluster(Cluster(2), f).results")
    finally:
        side.close()
    assert done.ok, done.message


KEEPS = """
import os
from pathlib import Path

left = Path("/tmp/left_by_the_students_process")
left.write_text("7")


def f(step):
    found = [left.exists(), Path(f"/tmp/{step - 1}").exists(), len(list(Path("/proc").glob("[0-9]*")))]
    Path(f"/tmp/{step}").write_text("7")
    dist.barrier()
    return found, sorted(map(int, os.listdir("/proc/self/fd")))[3:]
"""


def test_ranks_share_no_files_processes_or_descriptors(lab):
    """Not with the other ranks, the ranks of the next run or the student's process. They cannot make sockets at all."""
    needs("bwrap")
    test = """
    for step in range(2):
        for found, descriptors in on_cluster(Cluster(2), f, step).results:
            assert found == [False, False, 0], found
            assert len(descriptors) <= 3, descriptors  # its socket, its file for prints, and the folder that is listed
    """
    side = Walled(lab, "bwrap", SETUP, KEEPS)
    try:
        done = side.test(textwrap.dedent(test))
    finally:
        side.close()
    assert done.ok, done.message


ASKING = """
from threeloops.training.cluster import ask


def own(function):
    return function(ask("part"))
"""

SERVED_TEST = """
parts, asked = [torch.arange(3.0) + 10 * rank for rank in range(2)], []


def part(rank):
    asked.append(rank)
    return parts[rank]


seen = on_cluster(Cluster(2), own, f, served={"part": part})
assert [result.tolist() for result in seen.results] == [sum(parts).tolist()] * 2, seen.results
assert sorted(asked) == [0, 1], asked
"""


@pytest.mark.parametrize("where", ["direct", SANDBOXES[0]])
def test_a_rank_has_only_what_the_test_serves_it(lab, where):
    with sides(lab, where, SETUP + ASKING) as run:
        done = run("def f(x):\n    dist.all_reduce(x)\n    return x", SERVED_TEST)
        assert done.ok, done


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("current_rank().main.ask('part', b'\\\\xc1')", "malformed"),
        ("current_rank().main.ask('part', b'\\\\x91' * 5000)", ""),
        ("ask('parts')", "served here are"),
        ("ask('part', 1, 2)", "positional argument"),
    ],
)
def test_a_question_that_is_none_is_answered_with_an_error(lab, question, words):
    answer = f"""
    from threeloops.training.cluster.programs.child import current_rank
    from threeloops.training.cluster.programs.tensors import unpacked

    def f(x):
        try:
            said = {question}
            return str(unpacked(said))
        except RuntimeError as error:
            return str(error)
    """
    test = f"""
    seen = on_cluster(Cluster(1), own, f, served={{"part": lambda rank: torch.ones(2)}})
    assert {words!r} in seen.results[0], seen.results
    """
    with sides(lab, SANDBOXES[0], SETUP + ASKING) as walled:
        done = walled(answer, test)
        assert done.ok, done


WAITS = """
def waits_for_the_next(function, x):
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    function(x)
"""


@pytest.mark.parametrize("where", ("direct", *SANDBOXES))
def test_a_line_of_a_rank_is_the_labs_or_the_students(lab, where, monkeypatch):
    """Direct, the file names of the cells decide, as in a notebook."""
    if where == "direct":
        monkeypatch.setattr("threeloops.lab.checking.wall.is_of_lab", lambda name: name == "waits_for_the_next")
    with sides(lab, where, (SETUP + WAITS).strip()) as run:
        deadlock = run("def f(x):\n    pass", "on_cluster(Cluster(2), waits_for_the_next, f, torch.ones(3))")
        own = run("def f(x):\n    dist.recv(x, 0)", "on_cluster(Cluster(2), waits_for_the_next, f, torch.ones(3))")
        failure = run(
            "def f(x):\n    return x.no_such_thing", "on_cluster(Cluster(2), waits_for_the_next, f, torch.ones(3))"
        )
    line = (SETUP + WAITS).strip().split("\n").index("        dist.recv(x, 1)") + 1
    assert f"rank 0 waits (the lab's waits_for_the_next, line {line})" in deadlock.message, deadlock
    assert "rank 1 waits (your cell, line 2) for a message from rank 0" in own.message, own
    expected = "rank 1 failed: AttributeError: 'Tensor' object has no attribute 'no_such_thing'"
    assert failure.message == expected, failure


def test_a_card_shows_the_frames_of_a_failed_rank_and_no_file(lab):
    with sides(lab, "bwrap", (SETUP + WAITS).strip()) as run:
        done = run(
            "def f(x):\n    return x.no_such_thing",
            """
            with check("f", "a title"):
                on_cluster(Cluster(1), each, f, [torch.ones(3)])
            """,
        )
    assert done.reason.split("\n") == [
        "a title",
        "  raised     RankFailed: rank 0 failed: AttributeError: 'Tensor' object has no attribute 'no_such_thing'",
        "  at         the lab's each, line 9: return function(values[dist.get_rank()])",
        "  at         your cell, line 2: return x.no_such_thing",
    ]
