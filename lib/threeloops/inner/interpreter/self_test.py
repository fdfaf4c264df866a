"""Whether the interpreter is right on this machine: real kernels, tiny, and what to install where one is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threeloops.inner.interpreter.probes import Probe

KNOWN_TRITON = ("3.6", "3.7", "3.8")
"""Release series whose interpreter was read line by line, and for which every repair is tested."""

INSTALL = "pip install -r requirements.txt (triton 3.7.1), or triton 3.6 with numpy<2.4"


@dataclass(frozen=True)
class Check:
    """One thing tried: whether it is right, what it was, and if not, what came out and what to install."""

    name: str
    ok: bool
    what: str
    install: str = ""


@dataclass(frozen=True)
class Preflight:
    """Checks of the interpreter with these versions. `interpreted` is False where a GPU runs compiled kernels: there is
    nothing to check then."""

    triton: str
    numpy: str
    interpreted: bool
    checks: tuple[Check, ...]

    @property
    def known(self) -> bool:
        """Whether this release of Triton is one that the repairs were written for."""
        return self.triton.startswith(tuple(f"{series}." for series in KNOWN_TRITON))

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def report(self) -> str:
        """Lines to print."""
        versions = f"triton {self.triton}, numpy {self.numpy}"
        if not self.interpreted:
            return f"interpreter   off ({versions}): kernels are compiled for this GPU"
        lines = [f"interpreter   {'ok' if self.ok else 'wrong'} ({versions})"]
        if not self.known:
            lines.append(
                f"  triton {self.triton} is not one of {', '.join(KNOWN_TRITON)}, which the repairs were written for: "
                "what is listed here was tried, the rest was not"
            )
        for check in self.checks:
            lines.append(f"  {'ok   ' if check.ok else 'wrong'} {check.name}: {check.what}")
            if not check.ok:
                lines.append(f"        {check.install}")
        return "\n".join(lines)


def run(failed_repairs: Mapping[str, str], *, interpreted: bool) -> Preflight:
    """Try the interpreter as it stands. `failed_repairs`: name of a repair → why it could not be installed."""
    import numpy
    import triton

    checks = [Check(f"repair of {name}", False, why, INSTALL) for name, why in failed_repairs.items()]
    if interpreted:
        from threeloops.inner.interpreter.probes import PROBES

        checks += [tried(probe) for probe in PROBES]
    return Preflight(triton.__version__, numpy.__version__, interpreted, tuple(checks))


def tried(probe: "Probe") -> Check:
    try:
        wrong = probe.wrong()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    what = f"{probe.what}: {wrong}" if wrong else probe.what
    return Check(probe.name, not wrong, what, INSTALL if wrong else "")
