"""The two pages: a table per topic and what has not been measured, and the GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import fill

from benchmarks.report import gpu, inner, product, training
from benchmarks.report.evidence import COLLECTED, FOLDER, Evidence, current
from benchmarks.report.rows import GAIN, LOSS, SAME, Row, plain

PLACE = FOLDER.parent
ON_CPUS, ON_GPUS = "README.md", "GPU.md"
"""The pages, in the folder PLACE."""

Summariser = Callable[[Evidence], Iterator[Row]]

TOPICS: dict[str, dict[str, Summariser]] = {
    "Kernels without a GPU": {
        "kernels": inner.kernels,
        "meter": inner.meter,
        "liger": inner.liger,
        "replay": inner.replay,
        "roofline": inner.roofline,
    },
    "Kernels beside NVIDIA's own measurements": {"silicon": inner.silicon},
    "Precision, memory, data": {
        "precision": training.precision,
        "memory": training.memory,
        "data": training.data,
    },
    "Many ranks on two cores": {"cluster": training.cluster},
    "Splitting a model, surviving failures": {
        "parallel": training.parallel,
        "checkpoint": training.checkpoint,
        "elastic": training.elastic,
    },
    "Serving": {"serving": product.serving, "engines": product.engines, "decode": product.decode},
    "A service under load": {"service": product.service},
    "A fleet": {"fleet": product.fleet, "disaggregated": product.disaggregated},
    "Grading a class": {"grading": product.grading, "large_class": product.large_class},
    "The first minutes": {"first_hour": product.first_hour},
}
"""The summariser of each benchmark that runs on a CPU, in the order of the page."""

ON_GPU: dict[str, Summariser] = {
    COLLECTED: gpu.collected,
    "sustained": gpu.sustained,
    "attention_backward": gpu.attention_backward,
    "roofline": inner.roofline,
    "precision": training.precision,
    "memory": training.memory,
    "decode": product.decode,
    "kernels": inner.kernels,
}

COLUMNS = ("quantity", "ours", "peer", "ours against the peer", "level")

HEAD = (
    "The last column says how a number was obtained, and links to the raw samples and versions: **model** (computed, "
    "including virtual time), **CPU** or **GPU** (measured on that device), or **published** (compared with a "
    "published figure). A measured number is the median of its samples. If they differ, as on a noisy machine, "
    "(lowest … highest) follows. If a row covers several cases, the median and range are those of the cases, and the "
    "ratio is the median of the cases' ratios. A measurement holds for the code of its date. "
    f"{GAIN} marks a gain over the named peer, {LOSS} a loss, and {SAME} a tie. Claims such as svc-1 are in "
    "`lib/threeloops/lab/predictions/claims.json`. `python -m benchmarks NAME` measures one benchmark again. "
    "`make evidence` runs the quick form of several benchmarks. `python -m benchmarks report` rewrites this page and "
    f"{ON_GPUS} from the JSON in `evidence/`."
)
GPU_HEAD = f"[Measurements]({ON_CPUS}) explains the columns, and says what has not been measured."
COLUMNS_OF_TEXT = 118


def pages(files: Iterable[Path], benchmarks: Collection[str], on_cpu: Collection[str]) -> dict[str, str]:
    """The pages for these files, by name. `benchmarks` are all that exist, `on_cpu` those that never use a GPU.

    Raises ValueError if a file is not evidence, or lacks a fact that its summariser needs.
    """
    evidence = current(files)
    gpus: dict[str, list[Evidence]] = {}
    for each in evidence:
        if each.on_gpu:
            gpus.setdefault(each.machine, []).append(each)
    parts = ["# Measurements", fill(HEAD, COLUMNS_OF_TEXT, break_on_hyphens=False)]
    for title, summarisers in TOPICS.items():
        here = [each for name in summarisers for each in evidence if each.name == name and not each.on_gpu]
        if here:
            parts += [f"## {title}", caption(here), table(COLUMNS, cells(here, summarisers))]
    if gpus:
        parts += ["## GPUs", f"[{ON_GPUS}]({ON_GPUS}) has the measurements on an {' and on an '.join(gpus)}."]
    parts += ["## Not measured yet", "\n".join(f"- {line}" for line in unmeasured(evidence, benchmarks, on_cpu))]
    found = {ON_CPUS: parts, ON_GPUS: ["# Measurements on GPUs", GPU_HEAD, *_of_gpus(gpus)]}
    return {name: "\n\n".join(each) + "\n" for name, each in found.items()}


def _of_gpus(gpus: Mapping[str, Sequence[Evidence]]) -> Iterator[str]:
    for machine, here in gpus.items():
        ordered = [each for name in ON_GPU for each in here if each.name == name]
        yield from (f"## {machine}", caption(ordered), table(COLUMNS, cells(ordered, ON_GPU)))
        source, lines = gpu.kernel_times(here)
        if source:
            about = f"The rate is in bytes/s or FLOP/s, whichever bounds the kernel: [all samples]({source.path})."
            yield from (f"### Kernel times on the {machine}", about, table(gpu.TIMES, lines))


def cells(evidence: Iterable[Evidence], summarisers: Mapping[str, Summariser]) -> Iterator[tuple[str, ...]]:
    for each in evidence:
        try:
            yield from [row.cells() for row in summarisers[each.name](each)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            again = f"`python -m benchmarks {each.name}` measures it again"
            raise ValueError(f"{each.path} lacks what the report prints of it ({error!r}); {again}") from error


def caption(evidence: Sequence[Evidence]) -> str:
    """How to measure a topic again, and where and when it was measured."""
    names = dict.fromkeys(each.name for each in evidence if each.name != COLLECTED)
    places: dict[str, set[str]] = {}
    for each in evidence:
        places.setdefault(each.machine, set()).add(each.date)
    where = "; ".join(f"{machine}, {' to '.join(sorted({min(days), max(days)}))}" for machine, days in places.items())
    quick = dict.fromkeys(f"`{each.name}`" for each in evidence if each.quick)
    form = f" Quick form only: {', '.join(quick)}." if quick else ""
    sizes = dict.fromkeys(f"{each.settings['parameters']:,}" for each in evidence if "parameters" in each.settings)
    models = f" The models have {' and '.join(sizes)} parameters." if sizes else ""
    return f"`python -m benchmarks {' '.join(names)}` · {where}.{form}{models}"


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = chain([columns, ["---"] * len(columns)], lines)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") or "—" for cell in row) + " |" for row in rows)


def unmeasured(evidence: Sequence[Evidence], benchmarks: Collection[str], on_cpu: Collection[str]) -> Iterator[str]:
    """Benchmarks without evidence, those that a GPU could still run, and what a GPU's evidence says that it lacks."""
    measured, on_gpu = ({each.name for each in some} for some in (evidence, [e for e in evidence if e.on_gpu]))
    if never := [name for name in benchmarks if name not in measured]:
        yield f"On no device: {_listed(never)}."
    if missing := [name for name in benchmarks if name in measured and name not in on_cpu and name not in on_gpu]:
        yield f"On a GPU: {_listed(missing)}."
    always = _listed(name for name in benchmarks if name in on_cpu)
    yield f"NCCL, a service on a GPU, and a data feed on a GPU. The benchmarks {always} always use the CPU."
    for each in evidence:
        if each.on_gpu and each.name == COLLECTED:
            for name, part in each.facts.items():
                if part["status"] != "ok":
                    yield f"{each.machine}, {name}: {part['status']}, {part['reason']}."
            rows = gpu.rows_of(each.facts.get("kernel times"))
            reasons = Counter((row["by"], row["not_measured"]) for row in rows if "not_measured" in row)
            for (by, why), count in reasons.items():
                yield f"{each.machine}, {count} kernel times of {by}: {plain(why)}."
        elif each.on_gpu and (lacking := each.facts.get("not_measured")):
            yield f"{each.machine}, {each.name}: {lacking if isinstance(lacking, str) else len(lacking)} not measured."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
