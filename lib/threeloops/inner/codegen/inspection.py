"""The code inspector: what Triton makes of a kernel, read from the code, for GPUs that need not be there.

A launch says all that the compiler needs: the kernel, which arguments are pointers aligned to 16 bytes, which integers
divide by 16 or are 1, the constants, the warps. `compile_launches` compiles launches that were recorded, for any target
of `occupancy.COMPILATION_TARGETS`, as Triton's just-in-time compiler would on the spot, and reads the machine code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from threeloops.inner.codegen.generated_code import Code, read_code
from threeloops.inner.codegen.kernel_source import KernelName, KernelText, from_source, portable, undecorated
from threeloops.inner.codegen.occupancy import Target, compilation_target
from threeloops.inner.codegen.process import WorkerFailed, ask_worker, end_worker
from threeloops.inner.launches import DescriptorArgument, Launch, TensorArgument, record
from threeloops.inner.launches.binding import Storages, tensor

__all__ = [
    "TARGETS",
    "Code",
    "CompileError",
    "compile_kernel",
    "compile_launches",
    "end_worker",
    "from_source",
    "inspect",
]

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""A100, H100 and H200, B200, MI300X."""

SECONDS = 120.0
"""Time limit for one kernel; a large one takes some seconds."""


class CompileError(RuntimeError):
    """A kernel that does not compile for a target: `kernel`, `target`, `reason`, and `file` and `line` where known."""

    def __init__(self, kernel: str, target: str, reason: str, file: str | None = None, line: int | None = None) -> None:
        place = f" ({file}, line {line})" if file is not None and line is not None else ""
        super().__init__(f"{kernel} does not compile for {target}{place}: {reason}")
        self.kernel, self.target, self.reason, self.file, self.line = kernel, target, reason, file, line


def compile_launches(
    launches: Iterable[Launch], targets: Iterable[str] = TARGETS, *, seconds: float = SECONDS
) -> list[Code]:
    """The code of every launch for every target, launch by launch; launches that make the same code give it once.

    Raises CompileError for the first that does not compile or takes more than `seconds`, ValueError for an unknown
    target. A kernel that compiles may still not fit into a target's shared memory: see `Code.fits`.
    """
    wanted = [compilation_target(name) for name in targets]
    codes: list[Code] = []
    seen: list[Any] = []
    for launch in launches:
        kernel = KernelName(launch.module, launch.file, launch.name) if launch.kernel is None else launch.kernel
        source, constants = portable(kernel, launch.constants)
        arguments = {name: argument(name, value) for name, value in launch.arguments.items()}
        request = {"kernel": source, "arguments": arguments, "constants": constants, "options": dict(launch.options)}
        if request not in seen:
            seen.append(request)
            codes += [compile_request(launch.name, request, target, seconds) for target in wanted]
    return codes


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    targets: Iterable[str] = TARGETS,
    *,
    seconds: float = SECONDS,
    **options: Any,
) -> list[Code]:
    """The code of a kernel (a jit function, or `from_source(text, name)`) for arguments described one by one.

    `arguments`: tensors, TensorArguments, numbers, None, or a pointer as text: "*float16" is aligned to 16 bytes,
    "*float16:2" to 2. `constants` are its tl.constexpr parameters; `options` are num_warps, num_stages and the like.
    """
    described = {name: described_argument(value) for name, value in arguments.items()}
    name = kernel.name if isinstance(kernel, KernelText) else undecorated(kernel)[2].__name__
    launch = Launch(
        name, (1, 1, 1), described, dict(constants or {}), options, kernel=kernel, module="", file="", line=0
    )
    return compile_launches([launch], targets, seconds=seconds)


def inspect(call: Callable[[], Any], target: str) -> list[Code]:
    """The code for `target`, one of TARGETS, of every kernel that `call()` would launch.

    Launchers choose their configuration for that target. Nothing is executed: arguments may be tensors on the "meta"
    device, of any size.
    """
    from threeloops.inner.kernels.launching import compiling_for

    with compiling_for(target), record(execute=False) as launches:
        call()
    return compile_launches(launches, [target])


def compile_request(name: str, request: Mapping[str, Any], target: Target, seconds: float) -> Code:
    try:
        answer = ask_worker({**request, "target": target.triton}, seconds)
    except WorkerFailed as error:
        raise CompileError(name, target.name, str(error)) from None
    if "failed" in answer:
        failed = answer["failed"]
        shown = f": `{failed['text']}`" if "text" in failed else ""
        reason = f"{failed['kind']}: {failed['message']}{shown}{failed['printed']}"
        raise CompileError(name, target.name, reason, failed.get("file"), failed.get("line"))
    return read_code(name, request["options"], target, answer["compiled"])


def argument(name: str, value: Any) -> Any:
    """JSON for `bench.codegen.worker.argument`."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, TensorArgument):
        return {"tensor": {"dtype": value.dtype, "alignment": value.alignment, "storage_bytes": value.storage_bytes}}
    if isinstance(value, DescriptorArgument):
        lists = {field: list(getattr(value, field)) for field in ("shape", "strides", "block_shape")}
        return {"descriptor": {"base": argument(name, value.base), **lists}}
    if isinstance(value, tuple | list):
        return {"tuple": [argument(name, each) for each in value]}
    raise TypeError(f"argument {name} = {value!r}: expected a tensor, a descriptor, a number, None or a tuple of them")


def described_argument(value: Any) -> Any:
    if isinstance(value, str):
        return pointer(value)
    return tensor(value, Storages()) if hasattr(value, "data_ptr") else value


def pointer(text: str) -> TensorArgument:
    """ "*float16:2" → a float16 tensor at an address that divides by 2 and by no more; without ":", by 16."""
    dtype, _, alignment = text.removeprefix("*").partition(":")
    if not text.startswith("*") or (alignment and alignment not in ("1", "2", "4", "8", "16")):
        raise ValueError(
            f'argument {text!r}: expected "*dtype" or "*dtype:alignment" with an alignment of 1, 2, 4, 8 or 16'
        )
    return TensorArgument(dtype, (1,), (1,), 0, 0, 1, int(alignment or 16))
