"""The process that compiles kernels; `compiler_process` starts it, and it runs `main`.

When a kernel is decorated, Triton decides whether to interpret or to compile it. So a process that interprets cannot
compile. And compiling must not touch a GPU. This worker rebuilds each kernel from its source and runs Triton's own
just-in-time path (`JITFunction.run`), so that the kernel is specialised exactly as in a launch. Instead of a GPU, this
path gets a driver that only names the target, and objects in place of tensors. Requests and answers are frames. The
worker does not import torch, which takes seconds, unless a kernel's module does.
"""

import gc
import json
import linecache
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl

from threeloops import frames
from threeloops.frames import FrameError
from threeloops.inner.codegen.kernels import locate, rebuild, value
from threeloops.module_process import question_pipes

__all__ = ["main"]


class _Dtype(str):
    """The attributes of a torch dtype that Triton reads."""

    @property
    def itemsize(self) -> int:
        from triton._utils import canonicalize_dtype, get_primitive_bitwidth

        return max(1, get_primitive_bitwidth(canonicalize_dtype(self)) // 8)

    @property
    def is_floating_point(self) -> bool:
        return "float" in self


class _Tensor:
    """The attributes of a tensor argument that Triton reads: its dtype, the alignment of its address and the size of
    its storage."""

    def __init__(self, dtype: str, alignment: int, storage_bytes: int) -> None:
        self.dtype = _Dtype(dtype)
        self.alignment = alignment
        self.storage_bytes = storage_bytes
        self.shape = [1]

    def data_ptr(self) -> int:
        return self.alignment

    def ptr_range(self) -> int:
        return self.storage_bytes


class _Driver:
    """A driver without a device, which only names the target."""

    def __init__(self, backend: str, arch: Any, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch  # the key under which a kernel keeps what it compiled

    def get_current_stream(self, device):
        return 0


def _argument(plain: Any) -> Any:
    """Return the stand-in for a launch argument. Numbers stay as they are."""
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        return _Tensor(**plain["tensor"])
    if "tuple" in plain:
        return tuple(_argument(member) for member in plain["tuple"])
    from triton.tools.tensor_descriptor import TensorDescriptor

    descriptor = plain["descriptor"]
    base = _Tensor(**descriptor["base"]["tensor"])
    return TensorDescriptor(base, descriptor["shape"], descriptor["strides"], descriptor["block_shape"])


@contextmanager
def _without_torch() -> Iterator[None]:
    """Provide an empty torch inside the block, unless the real one is already imported.

    For AMD, Triton imports torch, which takes seconds, only to ask whether an argument is a torch.Tensor and how large
    its storage is. The stand-ins are not, and tell their size themselves.
    """
    if "torch" in sys.modules:
        yield
        return
    empty: Any = ModuleType("torch")
    empty.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = empty
    try:
        yield
    finally:
        del sys.modules["torch"]


def _compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return the texts and metadata of one kernel for one target."""
    from triton.runtime.driver import driver

    driver.set_active(_Driver(*request["target"]))
    sys.path.extend(path for path in request["path"] if path not in sys.path)
    source = request["kernel"]
    functions = rebuild(source["functions"])
    kernel = functions[source["entry"]] if "entry" in source else locate(source)
    while not hasattr(kernel, "create_binder") and hasattr(kernel, "fn"):
        kernel = kernel.fn  # autotuners and heuristics, whose choices are in the launch
    arguments = {name: _argument(plain) for name, plain in request["arguments"].items()}
    constants = {name: value(plain, functions) for name, plain in request["constants"].items()}
    for parameter in kernel.params:
        if parameter.name in constants and not parameter.is_constexpr and not callable(constants[parameter.name]):
            constants[parameter.name] = tl.constexpr(constants[parameter.name])  # marked in the call, not in the kernel
    with _without_torch():
        compiled = kernel.run(grid=(1, 1, 1), warmup=True, **arguments, **constants, **request["options"])
    asm = compiled.asm
    answer = {text: asm[text] for text in ("ttgir", "ptx", "amdgcn") if text in asm}
    needed = ("shared", "num_warps", "num_stages", "tmem_size")
    answer["metadata"] = {name: getattr(compiled.metadata, name, None) for name in needed}
    signature = compiled.src.signature
    attributes = compiled.src.attrs
    answer["signature"] = {name: str(kind) for name, kind in signature.items()}
    divisible = {path[0] for path, attribute in attributes.items() if ["tt.divisibility", 16] in attribute}
    answer["divisible_by_16"] = [name for number, name in enumerate(signature) if number in divisible]
    if "cubin" in asm:
        answer |= _disassemble(compiled)
    return answer


def _disassemble(compiled: Any) -> dict[str, str]:
    """Return SASS with source lines, and resource usage, from the tools in Triton's wheel. They are kept in Triton's
    cache, because the disassembler takes as long as the compiler."""
    from triton import knobs
    from triton.runtime.cache import get_cache_manager

    cache = get_cache_manager(compiled.hash)
    if (path := cache.get_file("disassembly.json")) is not None:
        return json.loads(Path(path).read_text())
    tools = {
        "sass": [knobs.nvidia.nvdisasm.path, "--print-code", "--print-line-info", "--no-dataflow"],
        "usage": [knobs.nvidia.cuobjdump.path, "--dump-resource-usage"],
    }
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        printed = {
            name: subprocess.run([*command, file.name], capture_output=True, text=True, check=True).stdout
            for name, command in tools.items()
        }
    cache.put(json.dumps(printed), "disassembly.json", binary=False)
    return printed


def _failure(error: BaseException) -> dict[str, Any]:
    """Return what went wrong and where, from the innermost of the errors that Triton chains when one function calls
    another."""
    from triton.compiler.errors import CompilationError

    while isinstance(error, CompilationError) and isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    if not isinstance(error, CompilationError):
        return {"kind": type(error).__name__, "message": str(error) or "no message"}
    node = getattr(error, "node", None)
    cause = error.__cause__
    message = error.error_message or (f"{type(cause).__name__}: {cause}" if cause else "see the line")
    return {"kind": type(error).__name__, "message": message, **(_place(error.src, node.lineno) if node else {})}


def _place(source: str, line: int) -> dict[str, Any]:
    """Return the file, line and text of line `line` of a function's source."""
    from triton.runtime.jit import JITFunction

    for function in gc.get_objects():
        if isinstance(function, JITFunction) and function.src == source:
            skipped = next(number for number, text in enumerate(function.raw_src) if text.lstrip().startswith("def "))
            file = function.fn.__code__.co_filename
            first = function.starting_line_number
            return {"file": file, "line": first + skipped + line - 1, "text": source.splitlines()[line - 1].strip()}
    return {"text": source.splitlines()[line - 1].strip()}


def _name_compiler_by_date() -> None:
    """Identify the compiler in Triton's cache keys by version, size and time of its file, because Triton hashes all of
    its half gigabyte, which takes a second or two."""
    import triton._C.libtriton as compiler
    from triton.runtime import cache

    file = os.stat(compiler.__file__)
    cache.triton_key = lambda: f"{triton.__version__}-{file.st_size}-{file.st_mtime_ns}"


def _serve(requests: "queue.Queue[dict]", answers: int) -> None:
    _name_compiler_by_date()
    frames.send(answers, {})  # ready: importing Triton does not count as compile time
    while True:
        request = requests.get()
        for name in [name for name in os.environ if name.startswith("TRITON_")]:
            del os.environ[name]
        os.environ.update(request["environment"])
        if os.environ.get("TRITON_CACHE_DIR") == "":
            os.environ["TRITON_CACHE_DIR"] = os.path.join(os.environ["TMPDIR"], "cache")
        try:
            answer = {"compiled": _compile_request(request)}
        except (Exception, SystemExit) as error:
            answer = {"failed": _failure(error)}
        linecache.clearcache()
        frames.send(answers, answer)


def _read(requests: "queue.Queue[dict]", pipe: int) -> None:
    """Read requests also while one is compiled, to notice at once that the process that asks is gone."""
    try:
        while True:
            requests.put(frames.receive(pipe)[0])
    except FrameError:
        os._exit(0)


def main() -> None:
    pipe, answers = question_pipes()
    requests: queue.Queue[dict] = queue.Queue()
    threading.Thread(target=_read, args=(requests, pipe), daemon=True).start()
    _serve(requests, answers)
