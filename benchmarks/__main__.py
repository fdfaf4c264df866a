"""`python -m benchmarks` lists the benchmarks. With names it runs them and writes what they measured as JSON.

The name `report` writes `benchmarks/README.md` and `GPU.md` from all the evidence there is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from rich.console import Console
from threeloops.files import replace_text
from threeloops_grader.machine.provenance import Provenance, provenance
from threeloops_grader.sandbox.bwrap import SandboxError

from benchmarks.result import Result, Unmeasured

BENCHMARKS = {
    "roofline": "copy bandwidth and matmul rates of this machine against numpy, torch and triton's timers (a minute)",
    "kernels": "traffic, generated code, errors and times of every kernel beside torch and Liger (ten minutes)",
    "meter": "what metering costs, beside triton-viz (two minutes)",
    "liger": "kernels --peers: Liger's operations in the meter, their values, bytes and cost (a minute)",
    "silicon": "predicted times of kernels against those that NVIDIA published, on shapes left out (a minute)",
    "attention_backward": "on a GPU: attention's backward pass alone, beside FlashAttention-2 and cuDNN (a minute)",
    "sustained": "a matrix product for a minute: what is left of the burst rate at the power limit (three minutes)",
    "precision": "encoding, loss scaler, masters and FP8 against torch's own; on a GPU FP8 against bf16 (a minute)",
    "memory": "counted and tracked peaks, recomputation, offloaded AdamW, beside torch's own (two minutes)",
    "data": "shards, prefetching and checksums beside small files, webdataset, torch and TensorBoard (a minute)",
    "cluster": "the virtual cluster's speed, our DDP beside torch's, a ring on gloo and as predicted (one minute)",
    "parallel": "ways of cutting a model beside torch's own, on the virtual cluster: times, overlap, bytes (a minute)",
    "checkpoint": "save, load, stalls, increments and losses of checkpoints beside torch's own (five minutes)",
    "elastic": "goodput simulated beside closed forms, and published failure rates beside each other (a minute)",
    "decode": "caches, speculation and weights of few bits, beside plain ones and formulas (five minutes)",
    "engines": "the engine beside llama.cpp, ctranslate2 and transformers, and where its time goes (eight minutes)",
    "serving": "the engine beside transformers on the same weights, its policies, and its own prediction (ten minutes)",
    "service": "the service at twice its capacity beside a sample server, and what it costs (six minutes)",
    "fleet": "real replicas behind NGINX beside their prediction, and ways to scale a bursty day (five minutes)",
    "disaggregated": "prefill and decode apart, in virtual time: goodput per GPU, ratios, tiers (a quarter of an hour)",
    "first_hour": "from the clone to the first green card: environment, JupyterLab, notebook, check (five minutes)",
    "replay": "what judging a student's kernel costs (two minutes)",
    "grading": "a class of mixed submissions against stock nbgrader, and the cost of the wall (ten minutes a lab)",
    "large_class": "a class of a thousand graded once, and one of ten thousand simulated (a quarter of an hour)",
}
ON_CPU = {
    "checkpoint", "cluster", "data", "disaggregated", "elastic", "engines", "first_hour", "fleet", "grading",
    "large_class", "liger", "meter", "parallel", "replay", "service", "serving", "silicon",
}  # fmt: skip
"""These use the CPU even if there is a GPU: ranks, submissions, interpreted kernels and shards live there."""
REPORT = "report"
ROWS = "unfinished"
"""The folder, beside the JSON, in which a benchmark of many rows keeps them until it is finished."""
GRADED_LABS = 2
"""The grading benchmark takes this many of the first labs, unless some are named."""


def main(arguments: list[str]) -> int:
    """Exit code: 0 if all ran, 1 if one failed or could not be measured here, 2 if the command is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - BENCHMARKS.keys() - {REPORT}):
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join([*BENCHMARKS, REPORT])}")
    if options.peers and "kernels" not in options.names:
        parser.error("--peers belongs to kernels: expected `python -m benchmarks kernels --peers`")
    console = Console()
    if options.savers:
        return _savers(parser, options, console)
    if not options.names:
        for name, what in BENCHMARKS.items():
            console.print(f"[bold]{name}[/]  {what}", highlight=False)
        console.print(f"[bold]{REPORT}[/]  write README.md and GPU.md from the evidence (a second)", highlight=False)
        return 0
    names = ["liger" if name == "kernels" and options.peers else name for name in options.names]
    failed = False
    for name in [name for name in names if name != REPORT]:
        about = _provenance("cpu" if name in ON_CPU else options.device)
        place = options.out or Path(__file__).parent / "evidence" / about.slug
        try:
            result = _run(name, about, options, place)
        except (Unmeasured, SandboxError) as error:
            console.print(f"{name}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            failed = True
            continue
        console.print(result.tables())
        place.mkdir(parents=True, exist_ok=True)
        replace_text(place / f"{name}.json", result.to_json())
        shutil.rmtree(place / ROWS / name, ignore_errors=True)
        with suppress(OSError):  # it is not there, or evidence keeps rows in it
            (place / ROWS).rmdir()
        if lost := result.facts.get("failed"):
            said = f"{name}: {len(lost)} cases failed, the first: {lost[0]}"
            console.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
            failed = True
    if REPORT in options.names:
        from benchmarks.report import PLACE, evidence_files, pages

        try:
            for name, text in pages(evidence_files(), BENCHMARKS, ON_CPU).items():
                replace_text(PLACE / name, text)
        except ValueError as error:
            console.print(f"{REPORT}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            failed = True
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="which to run, or `report`; without names, list them")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--quick", action="store_true", help="few samples, about a minute each")
    parser.add_argument("--peers", action="store_true", help="instead of kernels, run liger")
    parser.add_argument("--lab", nargs="+", default=[], help="labs of the grading benchmark")
    parser.add_argument("--class", type=int, default=20, dest="size", help="submissions in the class")
    parser.add_argument("--repeats", type=int, default=3, help="how often each harness grades the class")
    parser.add_argument(
        "--savers",
        action="store_true",
        help="checkpoint: write docs/power_cuts.md, which savers survive",
    )
    parser.add_argument("--out", type=Path, help="folder of the JSON files (benchmarks/evidence/<device>)")
    return parser


def _savers(parser: argparse.ArgumentParser, options: argparse.Namespace, console: Console) -> int:
    if options.names != ["checkpoint"]:
        parser.error(f"--savers with {options.names}: expected `python -m benchmarks checkpoint --savers`")
    from benchmarks.checkpoint_savers import page

    try:
        text = page(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
    except Unmeasured as error:
        console.print(f"checkpoint: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    place = (options.out or Path(__file__).parent.parent / "docs") / "power_cuts.md"
    replace_text(place, text)
    console.print(f"written: {place}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _provenance(device: str) -> Provenance:
    from threeloops.hardware.capability import capabilities, probe

    machine = probe()
    usable = capabilities(machine).usable_devices
    if device == "cuda" and not usable:
        sys.exit("--device cuda: no CUDA device can be used here; `threeloops doctor` says why")
    if device == "auto" and machine.gpus and not usable:
        why = "the CPU is measured, since no GPU can be used here; `threeloops doctor` says why"
        print(f"--device auto: {why}", file=sys.stderr)
    on_gpu = bool(usable) and device != "cpu"
    os.environ["THREELOOPS_DEVICE"] = "cuda" if on_gpu else "cpu"
    return provenance(machine, "cuda" if on_gpu else "cpu", usable[0] if on_gpu else None)


def _run(name: str, about: Provenance, options: argparse.Namespace, place: Path) -> Result:
    if name == "kernels":
        from benchmarks import kernels

        return kernels.measure(about, quick=options.quick, folder=place / ROWS / name)
    if name != "grading":
        return import_module(f"benchmarks.{name}").measure(about, quick=options.quick)
    try:
        from benchmarks import grading
    except ModuleNotFoundError as error:
        raise Unmeasured(f"{error.name} is not installed; `make course` installs what is missing") from None
    from threeloops_grader.authoring.labs import LabError, all_labs, find_lab

    try:
        labs = [find_lab(lab) for lab in options.lab] or all_labs()[: 1 if options.quick else GRADED_LABS]
    except LabError as error:
        raise Unmeasured(str(error)) from None
    return grading.measure(about, labs, size=options.size, repeats=options.repeats, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
