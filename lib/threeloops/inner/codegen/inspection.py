"""Compile recorded launches for any GPU, even if this machine does not have it, and read the machine code.

A launch contains all that the compiler needs: the kernel, which pointers are aligned to 16 bytes, which integers are
divisible by 16 or equal to 1, the constants and the number of warps. So the code is what Triton's just-in-time compiler
would generate on that GPU.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from threeloops.inner.codegen.compiler_process import ask_compiler
from threeloops.inner.codegen.generated_code import Code, read_code
from threeloops.inner.codegen.kernel_source import KernelName, portable
from threeloops.inner.codegen.occupancy import Target, compilation_target
from threeloops.inner.launches import Configurations, DescriptorArgument, Launch, TensorArgument, record
from threeloops.module_process import ProcessLost
from threeloops.places import source_name

__all__ = ["CompileError", "compile_launches", "inspect"]

_SECONDS = 120.0
"""Time limit for one kernel; large ones take some seconds."""


class CompileError(RuntimeError):
    """A kernel that does not compile for a target: `kernel`, `target`, `reason`, and `file` and `line` if they are
    known."""

    def __init__(self, kernel: str, target: str, reason: str, file: str | None = None, line: int | None = None) -> None:
        place = f" ({source_name(file)}, line {line})" if file is not None and line is not None else ""
        super().__init__(f"{kernel} does not compile for {target}{place}: {reason}")
        self.kernel = kernel
        self.target = target
        self.reason = reason
        self.file = file
        self.line = line


def compile_launches(launches: Iterable[Launch], targets: Iterable[str], *, seconds: float = _SECONDS) -> list[Code]:
    """Return the code of every launch for every target of `occupancy.COMPILATION_TARGETS`, launch by launch. Launches
    that compile to the same code give it once per configuration.

    Raises CompileError for the first that does not compile or takes more than `seconds`, ValueError for an unknown
    target. A kernel that compiles may still not fit into a target's shared memory: see `Code.fits`.
    """
    wanted = [compilation_target(name) for name in targets]
    codes: list[Code] = []
    seen: list[Any] = []
    for launch in launches:
        kernel = KernelName(launch.module, launch.file, launch.name) if launch.kernel is None else launch.kernel
        source, constants = portable(kernel, launch.constants)
        arguments = {name: _argument(name, value) for name, value in launch.arguments.items()}
        request = {"kernel": source, "arguments": arguments, "constants": constants, "options": dict(launch.options)}
        if (request, launch.configuration) not in seen:
            seen.append((request, launch.configuration))
            for target in wanted:
                code = _compile_request(launch.title, request, target, seconds)
                codes.append(replace(code, name=launch.name, configuration=launch.configuration))
    return codes


def inspect(call: Callable[[], Any], target: str, *, configs: Configurations = "chosen") -> list[Code]:
    """Return the code for `target`, one of `kernels.launching.TARGETS`, of every kernel that `call()` would launch.

    Launchers choose their configuration for that target. Nothing is executed, so tensors may be on the "meta" device,
    of any size. With `configs="all"` there is one Code for every configuration of an autotuned kernel that its
    autotuner does not prune, with its `configuration`; otherwise an autotuner takes the configuration that it has found
    before, or its first.
    """
    from threeloops.inner.kernels.launching import compiling_for

    with compiling_for(target), record(execute=False, configs=configs) as launches:
        call()
    return compile_launches(launches, [target])


def _compile_request(name: str, request: Mapping[str, Any], target: Target, seconds: float) -> Code:
    try:
        answer = ask_compiler({**request, "target": target.triton}, seconds)
    except ProcessLost as error:
        raise CompileError(name, target.name, str(error)) from None
    if "failed" in answer:
        failed = answer["failed"]
        shown = f": `{failed['text']}`" if "text" in failed else ""
        reason = f"{failed['kind']}: {failed['message']}{shown}{failed['printed']}"
        raise CompileError(name, target.name, reason, failed.get("file"), failed.get("line"))
    return read_code(name, request["options"], target, answer["compiled"])


def _argument(name: str, value: Any) -> Any:
    """Return JSON for the compiler's `argument`."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, TensorArgument):
        return {"tensor": {"dtype": value.dtype, "alignment": value.alignment, "storage_bytes": value.storage_bytes}}
    if isinstance(value, DescriptorArgument):
        lists = {field: list(getattr(value, field)) for field in ("shape", "strides", "block_shape")}
        return {"descriptor": {"base": _argument(name, value.base), **lists}}
    if isinstance(value, tuple | list):
        return {"tuple": [_argument(name, member) for member in value]}
    raise TypeError(f"argument {name} = {value!r}: expected a tensor, a descriptor, a number, None or a tuple of them")
