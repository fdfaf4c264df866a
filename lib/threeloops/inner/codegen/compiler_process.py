"""The client of the compiler's process."""

import os
import sys
from pathlib import Path
from typing import Any

from threeloops.module_process import ModuleProcess

__all__ = ["ask_compiler", "end_worker"]

_COMPILER = ModuleProcess(
    "the compiler",
    "threeloops.inner.codegen.compiler",
    {
        "TRITON_INTERPRET": None,
        "THREELOOPS_COMPILE_ONLY": "1",
        **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    },
    replaced_after=1000,  # the compiler leaks memory
)


def ask_compiler(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the answer of `compiler` to a request. Raises ProcessLost."""
    here = {"environment": _triton_environment(), "path": list(sys.path)}
    answer, _ = _COMPILER.ask({**request, **here}, seconds=seconds)
    if "failed" in answer:
        answer["failed"]["printed"] = _COMPILER.printed()
    return answer


def end_worker() -> None:
    """End this process's compiler, if it has one."""
    _COMPILER.end()


def _triton_environment() -> dict[str, str]:
    """Return the current TRITON_… variables. TRITON_CACHE_DIR is "" if no cache can be written. The compiler then uses
    a folder of its own."""
    variables = {name: text for name, text in os.environ.items() if name.startswith("TRITON_")}
    variables.pop("TRITON_INTERPRET", None)
    if "TRITON_CACHE_DIR" not in variables:
        cache = Path(variables.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
        if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
            variables["TRITON_CACHE_DIR"] = ""
    return variables
