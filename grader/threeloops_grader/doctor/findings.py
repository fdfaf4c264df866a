"""Turn the answers of `preflight` into findings that a person can act on. This module runs no check itself."""

from typing import Any

from threeloops.hardware.capability import OLDEST_CAPABILITY, TRITON_OLDEST_CAPABILITY, Machine, Report, runs_on

from threeloops_grader.doctor.finding import Finding
from threeloops_grader.doctor.surroundings import judge_surroundings
from threeloops_grader.machine.installed import Origin, Requirement, how_to_install, python_supported

__all__ = ["Answer", "judge"]

Answer = dict[str, Any]

_NEEDED_DISK_BYTES = 1 << 30
_PROCESSORS = ("x86_64", "aarch64")
"""Those for which torch 2.13, triton 3.7.1 and every other pin have Linux wheels on PyPI."""
_GENERATIONS = {
    "Maxwell (GTX 900, M40)": (5, 2),
    "Pascal (GTX 1000, P100)": (6, 0),
    "Volta (V100)": (7, 0),
    "Turing (T4)": (7, 5),
    "Ampere (A100)": (8, 0),
}
"""NVIDIA's generations by compute capability. Source: NVIDIA, "CUDA GPU Compute Capability"."""

_AGAIN = "run the doctor again: the first run on a machine reads the packages from disk"


def judge(
    answers: dict[str, Answer],
    machine: Machine | None,
    report: Report | None,
    wanted: list[Requirement],
    free_bytes: int,
    origin: Origin,
) -> list[Finding]:
    """Return one finding per check, in the order of their importance to a reader. The steps fit the way in which the
    course was installed."""
    install = how_to_install(origin)
    return [
        _platform(answers["machine"], machine, origin),
        _packages(wanted, install),
        _interpreter(answers["interpreter"], report, install),
        _compiler(answers["compiler"], install),
        _torch_compile(answers["cxx"]),
        _ranks(answers["ranks"], machine),
        _sandbox(answers["sandbox"], install),
        _limits(answers["sandbox"]),
        _gpu(answers.get("gpu"), machine, report),
        _disk(free_bytes),
        *_surroundings(answers["surroundings"], origin),
    ]


def _failed(name: str, what: str, answer: Answer, next_step: str) -> Finding:
    return Finding(name, "broken", f"{what}: {answer['error']}", _AGAIN if answer.get("late") else next_step)


def _platform(answer: Answer, machine: Machine | None, origin: Origin) -> Finding:
    if machine is None:
        return _failed("platform", "this machine could not be read", answer, how_to_install(origin))
    kind = f"{machine.platform}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB memory"
    system, _, processor = machine.platform.partition("-")
    if system != "linux":
        container = "open the devcontainer" if origin == "checkout" else "use a container or a machine with Linux"
        step = f"install WSL 2 and the course in it, or {container}" if system == "win32" else container
        return Finding("platform", "missing", f"{kind}: Triton has wheels for Linux only", step)
    if processor not in _PROCESSORS:
        sentence = f"{kind}: torch and Triton have no wheels for {processor}"
        return Finding("platform", "broken", sentence, f"use a machine with {' or '.join(_PROCESSORS)}")
    allowed, good = python_supported(machine.python)
    if not good:
        step = "make a virtual environment with such a Python"
        return Finding("platform", "broken", f"Python {machine.python}: the course needs {allowed}", step)
    return Finding("platform", "ok", f"{kind}, Python {machine.python}")


def _packages(wanted: list[Requirement], install: str) -> Finding:
    absent = [r.name for r in wanted if r.installed is None]
    if absent:
        return Finding("packages", "missing", f"not installed: {', '.join(absent)}", install)
    off = [f"{r.name} {r.installed} (needs {r.range})" for r in wanted if not r.satisfied]
    if off:
        return Finding("packages", "broken", f"outside of what the course is tested with: {', '.join(off)}", install)
    leading = ("torch", "triton", "numpy", "jupyterlab", "nbgrader", "papermill")
    versions = {r.name: r.installed for r in wanted}
    return Finding("packages", "ok", " · ".join(f"{n} {versions[n]}" for n in leading if n in versions))


def _interpreter(answer: Answer, report: Report | None, install: str) -> Finding:
    if answer["ok"]:
        sentence = "Triton kernels run on the CPU and equal numpy"
        if answer["wrong"]:
            wrong = ", ".join(f"{what} ({result})" for what, result in answer["wrong"].items())
            sentence += f"; this does not (a fault of the interpreter: use fp32 there): {wrong}"
        return Finding("interpreter", "ok", sentence)
    if report and not report.interpreter.available and not answer.get("late"):
        # For known traps the report has better words than the exception in which they end.
        why, _, step = report.interpreter.detail.rpartition(": ")
        if why.startswith("needs "):
            return Finding("interpreter", "missing", why, install)
        return Finding("interpreter", "broken", why, step)
    return _failed("interpreter", "an interpreted Triton kernel failed", answer, install)


def _compiler(answer: Answer, install: str) -> Finding:
    if answer["ok"]:
        return Finding("compiler", "ok", "Triton compiles for sm_90 without a GPU: PTX and machine code can be read")
    return _failed("compiler", "Triton could not compile for sm_90", answer, install)


def _torch_compile(answer: Answer) -> Finding:
    name = "torch.compile"
    if not answer["ok"]:
        step = "install the headers of this Python and of OpenMP (apt install g++ python3-dev libgomp1)"
        return _failed(name, "the C++ compiler cannot build what torch.compile writes", answer, step)
    if answer["compiler"] is None:
        return Finding(name, "missing", "no C++ compiler: parts that use torch.compile say SKIPPED", "apt install g++")
    return Finding(name, "ok", f"{answer['compiler']} builds with the headers of Python and OpenMP")


def _ranks(answer: Answer, machine: Machine | None) -> Finding:
    if not answer["ok"]:
        step = "let processes of this machine reach 127.0.0.1, and check that the loopback interface is up"
        return _failed("ranks", "two gloo ranks could not add a tensor", answer, step)
    alone = machine is not None and machine.cores == 1
    turns = "; with one core they take turns: values and bytes are right, times are not" if alone else ""
    return Finding("ranks", "ok", f"two gloo ranks added a tensor over loopback{turns}")


def _sandbox(answer: Answer, install: str) -> Finding:
    if not answer["ok"]:
        return _failed("sandbox", "bubblewrap could not be tried", answer, install)
    if answer["why_not"] is None:
        return Finding("sandbox", "ok", "bubblewrap starts: submissions are graded confined")
    until = "until then, `--sandbox none` grades only what you trust"
    if not answer["installed"]:
        return Finding("sandbox", "missing", "bubblewrap is not installed", f"apt install bubblewrap; {until}")
    step = "allow user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    return Finding("sandbox", "broken", answer["why_not"], f"{step}; {until}")


def _limits(answer: Answer) -> Finding:
    if not answer["ok"]:
        return Finding("limits", "missing", "control groups were not looked for, because the sandbox failed", _AGAIN)
    if answer["no_groups"] is None:
        return Finding("limits", "ok", "control groups hold a submission's memory, processes and cores")
    instead = "memory, processes and sockets are looked at 20 times per second, and cores are not divided"
    step = "systemd-run --user --scope -p Delegate=yes threeloops grade …"
    return Finding("limits", "missing", f"{answer['no_groups']}: {instead}", step)


def _gpu(answer: Answer | None, machine: Machine | None, report: Report | None) -> Finding:
    if machine is None or report is None:
        return Finding("gpu", "missing", "not looked for, because this machine could not be read", _AGAIN)
    limits = f" [{_unsupported(machine)}]"
    if not report.gpu.available:
        why, _, step = report.gpu.detail.rpartition(": ")
        return Finding("gpu", "broken" if machine.gpus else "missing", why + limits, step)
    if answer is None or not answer["ok"]:
        error = answer["error"] if answer else "it was not tried"
        step = "see whether nvidia-smi works; THREELOOPS_DEVICE=cpu goes on without the GPU"
        return Finding("gpu", "broken", f"{report.gpu.detail}, but a kernel did not run on it: {error}", step)
    old = [str(machine.gpus[i]) for i in report.visible_devices if i not in report.usable_devices]
    hidden = [str(gpu) for i, gpu in enumerate(machine.gpus) if i not in report.visible_devices]
    notes = [f"no longer supported by torch {machine.torch}: {', '.join(old)}"] if old else []
    notes += [f"hidden by CUDA_VISIBLE_DEVICES: {', '.join(hidden)}"] if hidden else []
    return Finding("gpu", "ok", "; ".join([report.gpu.detail, *notes]) + limits)


def _unsupported(machine: Machine) -> str:
    """Return which generations of GPUs the installed packages no longer support, in words."""

    def torch_runs(capability: tuple[int, int]) -> bool:
        if not machine.supported_archs:
            return capability >= OLDEST_CAPABILITY
        return any(runs_on(arch, capability) for arch in machine.supported_archs)

    gone = [name for name, capability in _GENERATIONS.items() if not torch_runs(capability)]
    torch_only = [name for name, c in _GENERATIONS.items() if torch_runs(c) and c < TRITON_OLDEST_CAPABILITY]
    parts = [f"torch no longer supports {', '.join(gone)}"] if gone else []
    parts += [f"Triton does not support {', '.join(torch_only)}"] if torch_only else []
    return "; ".join(parts) or "every generation since Maxwell has support"


def _surroundings(answer: Answer, origin: Origin) -> list[Finding]:
    if not answer["ok"]:
        return [_failed("home", "the home folder could not be looked at", answer, how_to_install(origin))]
    return judge_surroundings(answer, origin)


def _disk(free_bytes: int) -> Finding:
    free = f"{free_bytes / 2**30:.1f} GiB free in the course's folder"
    if free_bytes < _NEEDED_DISK_BYTES:
        return Finding("disk", "broken", f"{free}: grading and reports need 1 GiB", "make room, then go on")
    return Finding("disk", "ok", free)
