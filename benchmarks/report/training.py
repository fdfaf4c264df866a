"""Rows about training: precision, memory, data, collectives, cutting a model, and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.report.evidence import Evidence
from benchmarks.report.rows import (
    FASTER,
    FEWER,
    GAIN,
    LOSS,
    MODEL,
    PUBLISHED,
    SAME,
    SHORTER,
    Row,
    amount,
    beside,
    compared,
    fact,
    measured,
    percentage,
    predicted,
    prediction,
    within,
)
from benchmarks.result import Prediction, readable

DDP, RING = "threeloops DDP", "ring of threeloops.training.collectives"
SIZES = (("up to 2 MiB", 0, 2), ("4 and 8 MiB", 4, 8), ("16 MiB and larger", 16, float("inf")))
"""Ranges of messages, in MiB: latency decides in the first, bandwidth in the last."""


def precision(evidence: Evidence) -> Iterator[Row]:
    """Yield the cost of FP8 and, on a CPU, the agreement with torch to the bit, which every machine computes."""
    facts = evidence.facts
    loss, emulated = facts["gpt_loss"], "" if evidence.on_gpu else " (emulated)"
    sign, over = (LOSS if loss["fp8"] > loss["float32"] else GAIN), loss["fp8_over_float32"]
    peer = (f"float32: {loss['float32']:.4f}", f"{sign} {over:.4f} times as large")
    yield fact(evidence, f"final loss of the tiny GPT, trained in FP8{emulated}", f"{loss['fp8']:.4f}", peer)
    for what in evidence.quantities("linear forward|GPT training step"):
        yield from beside(evidence, what, "threeloops", say=f"{what} in FP8")
    if not evidence.on_gpu:
        differing = facts["codes_that_differ_from_torch"]
        wrong = sum(differing.values())
        same = f"{LOSS} {wrong} differ" if wrong else f"{SAME} the same"
        yield fact(evidence, f"encoded values that differ: {', '.join(differing)}", str(wrong), ("torch's casts", same))
        steps = evidence.note(r"for (\d+ of \d+) steps")
        say = "steps in which scale and parameters match bit for bit, with injected overflows"
        yield fact(evidence, say, steps, ("`torch.amp.GradScaler`", ""))
        yield from beside(evidence, "loss scaler step", "threeloops", say="step of the loss scaler")
        yield from beside(evidence, "AdamW step, float32 masters", "threeloops", say="AdamW step with float32 masters")
        encodings = evidence.quantities("^encode")
        say = f"encoding in {len(encodings)} formats, by code written for readability"
        yield from beside(evidence, encodings, "threeloops", say=say)


def memory(evidence: Evidence) -> Iterator[Row]:
    """Predicted peaks, recomputation, and AdamW with its state elsewhere."""
    peaks: dict[str, list[Prediction]] = {}
    for each in evidence.predicted("peak of live storage"):
        peaks.setdefault(each.by, []).append(each)
    against = [pair for by, cases in peaks.items() for pair in measured(cases, by)]
    yield from predicted(evidence, "peak of live storage in a training step", *against)
    if not evidence.on_gpu:  # segments are tracked on the CPU whatever else there is
        segments = measured(evidence.predicted("activations, (L/k)·b + k·c"), "LiveStorage")
        yield from predicted(evidence, "activations with recomputed segments, (L/k)·b + k·c", *segments)
        best = evidence.facts["best_layers_per_segment"]
        right = sum(each["found"] == each["by_formula"] for each in best)
        yield fact(evidence, "depths for which the formula finds the best segment length", f"{right} of {len(best)}")
    yield claimed(evidence, evidence.facts["times_longer_for_recomputing"]["Segments, k = 1"])
    recomputed = {"Segments, k = 1": "every layer", "Segments, k = 1, matrix products kept": "all but matrix products"}
    for ours, what in recomputed.items():
        say = f"forward and backward pass, {what} recomputed"
        yield from beside(evidence, "forward and backward pass", ours, say=say)
    for ours in [by for by in evidence.parties("AdamW step") if by.startswith("Offloaded")]:
        also = map(prediction, evidence.predicted("AdamW step", case=f"^{re.escape(ours)}$"))
        say = f"AdamW step, state in {ours.partition(', ')[2]}".replace("in a link", "behind a link")
        yield from beside(evidence, "AdamW step", ours, say=say, also=also)


def claimed(evidence: Evidence, times: float) -> Row:
    """The time of recomputing every layer beside what is claimed of it."""
    low, high = map(float, re.findall(r"[\d.]+", evidence.note(r"claimed ([\d.]+ to [\d.]+)")))
    outcome = f"{LOSS} more" if times > high else f"{GAIN} less" if times < low else f"{SAME} as claimed"
    say = "time with every layer recomputed ÷ time with none"
    return fact(evidence, say, f"{times:.2f}", (f"claimed: {low:.2f} to {high:.2f}", outcome), level=PUBLISHED)


def data(evidence: Evidence) -> Iterator[Row]:
    """Shards beside small files, loaders, checksums and prefetching."""
    for what in evidence.quantities("^samples/s from"):
        level = MODEL if "simulated" in what else None
        peers = [by for by in evidence.parties(what) if by != "threeloops.data"]
        yield from beside(evidence, what, "threeloops.data", *peers, say=f"tar shards: {what}", level=level)
    for what in evidence.quantities("5 ms store|^CRC32C"):
        for ours in [by for by in evidence.parties(what) if by.startswith("threeloops")][-1:]:  # the block of the peer
            yield from beside(evidence, what, ours, say=f"{what}, {ours.rpartition(', ')[2]}")
    busy = evidence.facts["utilisation"]
    for source in dict.fromkeys(name.partition(",")[0] for name in busy):
        without, ahead = (part for name, part in busy.items() if name.startswith(source))
        peer = (f"without: {without:.0%}", f"{GAIN} more" if ahead > without else f"{LOSS} no more")
        yield fact(
            evidence,
            f"share of time the consumer is busy, with prefetching, {source}",
            f"{ahead:.0%}",
            peer,
            level=MODEL,
        )


def cluster(evidence: Evidence) -> Iterator[Row]:
    """The virtual cluster's speed, our DDP on it, and a ring on real processes."""
    for what in evidence.quantities("^events|^start and end"):
        yield from beside(evidence, what, "virtual cluster", say=f"virtual cluster: {what}")
    router = evidence.facts["router"]
    yield fact(evidence, "virtual cluster: a run of 64 ranks", readable(router["seconds_of_64_ranks"], "s"))
    say = "virtual cluster: runs of one program whose times, messages or spans differ"
    yield fact(evidence, say, f"{router['different'] - 1} of {router['runs']}")
    for step in ("first step", "step 3"):
        whats = evidence.quantities(f"^(one bucket|buckets of).*{step}$")
        say = f"DDP, {step}, {len(whats)} bucket sizes"
        yield from beside(evidence, whats, DDP, say=say, words=FASTER, level=MODEL)
    for name, low, high in SIZES:
        whats = [what for what in evidence.quantities("^all-reduce of") if low <= _mebibytes(what) <= high]
        cases = [each for each in evidence.predicted("ring all-reduce, gloo") if low <= _mebibytes(each.case) <= high]
        say = f"ring all-reduce on 2 gloo processes, {name}"
        yield from beside(evidence, whats, RING, say=say, also=measured(cases, "predicted by the α–β–γ model"))


def _mebibytes(text: str) -> float:
    """The size that a text names: "all-reduce of 64 KiB, …" → 0.0625."""
    found = re.search(r"([\d.]+) ([KM])iB", text)
    return float(found[1]) / (1024 if found[2] == "K" else 1) if found else float("nan")


def parallel(evidence: Evidence) -> Iterator[Row]:
    """Sharded, tensor-parallel and pipelined training, and plans beside published runs."""
    for what in evidence.quantities("^sharded"):
        form = percentage if "share" in what else amount
        say = f"FSDP: {what.partition(', ')[2]}"
        yield from beside(evidence, what, "threeloops FSDP", say=say, level=MODEL, form=form)
    for what in evidence.quantities("on gloo: collectives"):
        say = f"tensor parallel, on gloo: collectives in the {what.partition(' of')[0]} pass of a block"
        yield from beside(evidence, what, "threeloops", say=say, words=FEWER)
    for what in ("bytes sent per rank", "model states"):
        yield from predicted(evidence, f"ZeRO: {what}", *measured(evidence.predicted(what)))
    yield from pipelines(evidence)
    for what in ("step time", "memory reserved"):
        runs = dict.fromkeys(each.by for each in evidence.predicted(what))
        against = [pair for by in runs for pair in measured(evidence.predicted(what, f"^{by}$"), f"{by}'s runs")]
        yield from predicted(evidence, f"plans of published runs: {what}", *against, level=PUBLISHED)


def pipelines(evidence: Evidence) -> Iterator[Row]:
    """How many schedules are shorter than torch's, as long, and longer."""
    kinds = evidence.facts["pipeline schedules beside torch's"]
    for say, chosen in (("zero-bubble schedules, two stages per rank", True), ("other pipeline schedules", False)):
        rows = [
            row
            for kind, costs in kinds.items()
            for row in costs.values()
            if isinstance(row, dict) and ("ZeroBubble, 2" in kind) == chosen
        ]
        shorter, even, longer = (sum(row[name] for row in rows) for name in ("shorter", "as long", "longer"))
        worst = within(max((row["at most longer by"] for row in rows), default=0))
        parts = [
            f"{GAIN} {shorter} shorter" if shorter else "",
            f"{SAME} {even} equally long" if even else "",
            f"{LOSS} {longer} longer, by at most {worst}" if longer else "",
        ]
        peer = ("torch's schedules in our simulator", "; ".join(filter(None, parts)))
        yield fact(evidence, say, f"{shorter + even + longer} cases", peer, level=MODEL)


def checkpoint(evidence: Evidence) -> Iterator[Row]:
    """Rates, stalls, and what a crash or a kill loses."""
    whole, incremental = "threeloops, full saves only", "threeloops, incremental"
    for what in ("save", "load"):
        for ours, form in ((whole, ""), (incremental, ", incremental")):
            yield from beside(
                evidence, what, ours, "torch DCP", "torch.save", "safetensors, fsync", say=f"{what}{form}"
            )
    for what in evidence.quantities("^save of .* small tensors$"):
        for ours, form in ((whole, ""), (incremental, ", incremental")):
            yield from beside(evidence, what, ours, "torch.save", say=f"{what}{form}")
    for what in evidence.quantities("^stall"):
        yield from beside(evidence, what, whole, say=f"{what}, in units of one copy of the state", words=SHORTER)
    for what in evidence.quantities(": both lost$"):
        say = f"{what.partition(':')[0]} after which neither checkpoint loads"
        yield from losses(evidence, what, incremental, say, what.replace("both lost", "states"), MODEL)
    for what in evidence.quantities("^checkpoints lost in"):
        yield from losses(evidence, what, "threeloops", what)
    what = "bytes of an incremental save"
    yield from predicted(evidence, what, *measured(evidence.predicted(what)))


def losses(
    evidence: Evidence, what: str, ours: str, say: str, states: str = "", level: str | None = None
) -> Iterator[Row]:
    """Checkpoints lost, ours beside every peer's in one row; `states` is the quantity that counts all cases."""
    lost = {by: series for by in evidence.parties(what) if (series := evidence.find(what, by))}
    cells = {}
    for by, series in lost.items():
        total = evidence.find(states, by)
        cells[by] = f"{series.median:.0f}" + (f" of {total.median:.0f}" if total else "")
    if ours in lost:
        others = [by for by in lost if by != ours]
        against = [(f"{by}: {cells[by]}", compared([(lost[ours], lost[by])], FEWER)) for by in others]
        yield fact(evidence, say, cells[ours], *against, level=level)


def elastic(evidence: Evidence) -> Iterator[Row]:
    """Goodput beside its closed form, and one run's failure rate beside another's."""
    for what, say in (("share that is useful", "goodput"), ("share that is not", "share of time lost")):
        yield from predicted(
            evidence, f"{say}, by the closed form", *measured(evidence.predicted(what), "simulated"), level=MODEL
        )
    runs = [pair for each in evidence.predicted("failures") for pair in measured([each], each.by.upper())]
    yield from predicted(evidence, "failures of other runs, predicted from Llama 3's rate", *runs, level=PUBLISHED)
    jobs = []
    for each in evidence.predicted("mean time to failure"):
        jobs += measured(
            [each], each.case.replace("from the rate per node-day of the same cluster", "from RSC-1's own rate")
        )
    yield from predicted(evidence, "mean time to failure of Meta's RSC-1", *jobs, level=PUBLISHED)
