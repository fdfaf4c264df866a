"""The process that compiles: clean, reused, replaced when it dies or hangs, not shared with a fork, gone at the end."""

import os
import subprocess
import sys

import pytest
from described_launch import described_launch
from threeloops.inner.codegen import CompileError, compile_launches, end_worker, from_source
from threeloops.inner.codegen import compiler_process as codegen_process

IMPORTS = "import os, sys, triton\nimport triton.language as tl\n"
KERNEL = "@triton.jit\ndef kernel(x):\n    tl.store(x, 1.0)\n"


def compiled(before="", kernel=KERNEL, target="sm_90", **how):
    """Code of a kernel whose file does something else first: what stands there is executed in the worker."""
    launch = described_launch(from_source(IMPORTS + before + kernel, "kernel"), {"x": "*float32"})
    (code,) = compile_launches([launch], [target], **how)
    return code


def worker_pid():
    return codegen_process._COMPILER.process.pid


def test_it_is_clean(monkeypatch):
    end_worker()  # kernels of other tests may have brought torch
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    compiled(target="gfx942")  # AMD's compiler would like to import torch
    compiled(
        "assert 'TRITON_INTERPRET' not in os.environ\n"
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == os.environ['HIP_VISIBLE_DEVICES'] == ''\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )


def test_it_is_reused_and_follows_the_environment(monkeypatch, tmp_path):
    compiled()
    first = worker_pid()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "one"))
    compiled()
    assert list((tmp_path / "one").rglob("kernel.cubin")) and list((tmp_path / "one").rglob("disassembly.json"))
    assert compiled().sass == compiled().sass  # from the cache
    assert worker_pid() == first


def test_what_kernels_print_does_no_harm(capfd):
    assert compiled("print('{\"compiled\": 1}', flush=True)\nos.system('echo said')\n").name == "kernel"
    assert "said" not in capfd.readouterr().out


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    compiled()
    assert list((codegen_process._COMPILER.folder / "cache").rglob("kernel.cubin"))


class TestDeath:
    def test_a_killed_worker_is_named_and_replaced(self):
        with pytest.raises(CompileError, match="the compiler's process ended \\(SIGKILL\\)"):
            compiled("os.kill(os.getpid(), 9)\n")
        assert compiled().name == "kernel"

    def test_its_last_words_are_kept(self):
        with pytest.raises(CompileError, match="exit code 3.*\n.*assertion of LLVM failed"):
            compiled("print('assertion of LLVM failed', file=sys.stderr, flush=True)\nos._exit(3)\n")

    def test_a_worker_that_died_in_between_goes_unnoticed(self):
        compiled()
        old = worker_pid()
        os.kill(old, 9)
        os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)
        assert compiled().name == "kernel" and worker_pid() != old

    def test_a_hanging_compilation_is_ended(self):
        compiled()
        hanging = worker_pid()
        with pytest.raises(CompileError, match="not compile for sm_90: the compiler gave no answer within 0.5 s"):
            compiled("while True: pass\n", seconds=0.5)
        with pytest.raises(ProcessLookupError):
            os.kill(hanging, 0)
        assert compiled().name == "kernel"

    def test_an_interrupt_leaves_no_answer_behind(self, monkeypatch):
        compiled()
        with monkeypatch.context() as patched:
            patched.setattr(codegen_process._COMPILER, "_answer", interrupt)
            with pytest.raises(KeyboardInterrupt):
                compiled()
        assert compiled(kernel=KERNEL.replace("1.0", "2.0")).name == "kernel"

    def test_an_exit_is_an_error_like_any_other(self):
        compiled()
        first = worker_pid()
        with pytest.raises(CompileError, match="SystemExit"):
            compiled("sys.exit(4)\n")
        assert worker_pid() == first


def interrupt(*_):
    raise KeyboardInterrupt


FORK = """
import os, sys
sys.path.append({support!r})
from threeloops.inner.codegen import compiler_process as codegen_process
from described_launch import described_launch
from threeloops.inner.codegen import compile_launches, from_source

def pid():
    compile_launches([described_launch(from_source({text!r}, "kernel"), {{"x": "*float32"}})], ["gfx942"])
    return codegen_process._COMPILER.process.pid

mine, folder = pid(), codegen_process._COMPILER.folder
child = os.fork()
if child == 0:
    assert codegen_process._COMPILER.process is None
    print("child", pid(), flush=True)
    sys.exit(0)  # with all handlers, as multiprocessing would not
assert os.waitpid(child, 0)[1] == 0
assert folder.exists() and pid() == mine
print("parent", mine, folder, flush=True)
"""


def test_a_fork_has_its_own_and_nothing_is_left_behind():
    script = FORK.format(text=IMPORTS + KERNEL, support=os.path.dirname(sys.modules["described_launch"].__file__))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    parent, folder = said["parent"].split()
    assert parent != said["child"]
    for pid in (parent, said["child"]):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert not os.path.exists(folder)


def test_ending_it_twice_is_fine():
    end_worker()
    end_worker()
    assert compiled().name == "kernel"


def test_it_is_replaced_after_many(monkeypatch):
    compiled()
    first = worker_pid()
    monkeypatch.setattr(codegen_process._COMPILER, "replaced_after", 1)
    compiled()
    assert worker_pid() != first
