"""The checks of `threeloops doctor`, each in a separate process: `python -m threeloops_grader.doctor.preflight CHECK`.

A check prints one JSON object as its last line: {"ok": true, …}, or {"ok": false, "error": …} if it fails on this
machine. A crash counts as an answer too: the doctor sees how the process ended.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = [
    "Answer", "DoesNotWork", "compiler", "cxx", "gpu", "interpreter", "machine", "ranks", "sandbox",
    "surroundings",
]  # fmt: skip

_INDUCTOR_LIKE = """
#include <Python.h>
#include <omp.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""

Answer = dict[str, Any]


class DoesNotWork(Exception):
    """A check ran to its end with a wrong result; the message says which."""


def machine() -> Answer:
    """Return the record of this machine, for `threeloops.hardware.capability`. Creates no CUDA context."""
    from threeloops.hardware.capability import probe

    return {"machine": asdict(probe())}


def interpreter() -> Answer:
    """Try interpreted kernels of the library, and report wrong results of the interpreter. Like every lab, this
    installs the course's repairs of Triton's interpreter. Needs TRITON_INTERPRET=1."""
    from threeloops.inner.interpreter import enable_without_gpu

    enable_without_gpu()  # before the kernels are imported: Triton decides then whether to interpret them

    from threeloops.inner.interpreter.self_test import loop_bound, wrong_answers

    _require_saxpy("cpu", "an interpreted")
    if wrong := loop_bound():
        raise DoesNotWork(f"an interpreted loop over a runtime integer stored {wrong}")
    return {"wrong": wrong_answers()}


def _require_saxpy(device: str, which: str) -> None:
    """Run the library's saxpy kernel on `device` against numpy; raises DoesNotWork."""
    import numpy as np
    import torch
    from threeloops.inner.kernels.rows.saxpy import saxpy_kernel

    n = 10_000
    x, y = (np.random.default_rng(seed).normal(size=n).astype(np.float32) for seed in (0, 1))
    out = torch.full((n + 1,), -1.0, device=device)
    saxpy_kernel[(10,)](2.0, torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), out, n, BLOCK=1024)
    error = float(np.abs(out[:n].cpu().numpy() - (2.0 * x.astype(np.float64) + y)).max())
    if not error < 1e-5:
        raise DoesNotWork(f"{which} a·x + y is off by {error:.3g}")
    if out[n] != -1.0:
        raise DoesNotWork(f"{which} kernel wrote beyond its mask")


def compiler() -> Answer:
    """Check the library's saxpy kernel, compiled for sm_90, which needs no GPU. Needs THREELOOPS_COMPILE_ONLY=1."""
    import triton
    from threeloops.inner.kernels.rows.saxpy import saxpy_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = ("fp32", "*fp32", "*fp32", "*fp32", "i32", "constexpr")
    signature = dict(zip(saxpy_kernel.arg_names, kinds, strict=True))
    with tempfile.TemporaryDirectory() as cache:
        # A fresh cache, because an old result would hide that ptxas no longer runs.
        os.environ["TRITON_CACHE_DIR"] = cache
        source = ASTSource(fn=saxpy_kernel, signature=signature, constexprs={"BLOCK": 1024})
        assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
    if ".target sm_90" not in assembly["ptx"]:
        raise DoesNotWork("triton compiled for sm_90, but the PTX is for another target")
    return {"ptx_bytes": len(assembly["ptx"]), "cubin_bytes": len(assembly["cubin"])}


def cxx() -> Answer:
    """Build a shared library with Python's and OpenMP's headers, like those that torch.compile builds on a CPU."""
    from threeloops.hardware.probe import find_cxx

    name = find_cxx()
    if name is None:
        return {"compiler": None}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "check.cpp"
        source.write_text(_INDUCTOR_LIKE)
        headers = sysconfig.get_paths()["include"]
        argv = [name, "-shared", "-fPIC", "-fopenmp", f"-I{headers}", str(source), "-o", f"{folder}/check.so"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if "rror" in line]
        raise DoesNotWork(errors[0] if errors else f"it exits {done.returncode}")
    return {"compiler": name}


def ranks() -> Answer:
    """Start two processes on loopback that add a tensor with gloo, on a port that the kernel picks."""
    import torch

    wanted = 3 * torch.arange(5.0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        right = False
        try:
            os.close(writing)  # so that reading the port ends when rank 0 fails
            right = torch.equal(_all_reduce(1, int(os.read(reading, 16))), wanted)
        finally:
            os._exit(0 if right else 1)
    total = _all_reduce(0, 0, announce=lambda port: os.write(writing, str(port).encode()))
    _, status = os.waitpid(child, 0)
    if status or not torch.equal(total, wanted):
        raise DoesNotWork(f"the sum over two ranks is {total.tolist()}, expected {wanted.tolist()}")
    return {"world_size": 2}


def _all_reduce(rank: int, port: int, announce: Callable[[int], object] | None = None) -> Any:
    """Compute the sum over both ranks of (rank + 1) · [0, 1, 2, 3, 4]. Rank 0 opens the store and announces its
    port."""
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=10)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=limit, wait_for_workers=False)
    if announce:
        announce(store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    total = (rank + 1) * torch.arange(5.0)
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    return total


def sandbox() -> Answer:
    """Return whether bubblewrap starts here, and whether control groups can be made."""
    from threeloops_grader.sandbox import bwrap, cgroup

    installed = shutil.which("bwrap") is not None
    return {"why_not": bwrap.why_not(), "installed": installed, "no_groups": cgroup.why_not()}


def surroundings() -> Answer:
    """Report the home folder, git, network, browser and memory."""
    from threeloops_grader.doctor.surroundings import survey

    return survey()


def gpu() -> Answer:
    """Check the same kernel, compiled and launched on the current CUDA device."""
    import torch

    name = torch.cuda.get_device_name()
    _require_saxpy("cuda", f"on {name} a compiled")
    return {"device": name}


_CHECKS = {check.__name__: check for check in (machine, interpreter, compiler, cxx, ranks, sandbox, surroundings, gpu)}


def _main(name: str) -> None:
    try:
        answer = {"ok": True, **_CHECKS[name]()}
    except Exception as error:
        text = (str(error).strip().splitlines() or ["no message"])[-1]
        answer = {"ok": False, "error": text if isinstance(error, DoesNotWork) else f"{type(error).__name__}: {text}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main(sys.argv[1])
