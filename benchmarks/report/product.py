"""Rows about the product: decoding, serving, a service under load, a fleet, and grading a class."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report.evidence import Evidence
from benchmarks.report.rows import (
    GAIN,
    LOSS,
    MODEL,
    MORE,
    SHORTER,
    Against,
    Row,
    amount,
    beside,
    compared,
    fact,
    measured,
    percentage,
    predicted,
    prediction,
    verdict,
)
from benchmarks.result import readable

OURS, SERVICE, SAMPLE = "threeloops", "threeloops serve", "the sample server (svc-1)"
TRANSFORMERS = ("transformers, continuous batching", "transformers, generate")
WINDOWS = "requests outstanding, Kubernetes' windows"
POLICIES = ("CPU at 70% (svc-2)", "liveness alone, one /health (svc-4)", "a fixed number for the peak")
TOGETHER = "both kinds of work"
STOCK = ("nbgrader autograde (stock)", "nbgrader autograde (stock, no demonstrations)")


def first_hour(evidence: Evidence) -> Iterator[Row]:
    """Yield the total waiting time of a newcomer, beside the goal, and the downloads, which depend on the network."""
    goal = evidence.facts["goal, s"]
    for what in evidence.quantities("^all of these"):
        (series,) = (each for each in evidence.series if each.what == what)
        against = (f"goal: {goal:.0f} s", "met" if series.median <= goal else "missed")
        yield fact(evidence, what.partition(": ")[2], amount(series.samples, "s"), against)
    for series in evidence.series:
        if series.what.startswith("apart"):
            yield fact(evidence, series.what.partition(": ")[2], amount(series.samples, "s"))


def large_class(evidence: Evidence) -> Iterator[Row]:
    """Yield the time, throughput and memory of a real class, and the efficiency of simulated ones. The largest have a
    goal."""
    goal = evidence.facts["goal, efficiency"]
    largest = f"{evidence.facts['goal, submissions']:,} submissions"
    shown = {series.what: amount(series.samples, series.unit) for series in evidence.series}
    for series in evidence.series:
        name, _, quantity = series.what.rpartition(": ")
        if not name.startswith("simulated"):
            yield fact(evidence, series.what, shown[series.what])
        elif quantity == "parallel efficiency":
            outcome = (f"goal: {goal:.0%}", "met" if series.median >= goal else "missed")
            against = [outcome] if largest in name else []
            draws = f"{series.median:.1%} ({min(series.samples):.1%} … {max(series.samples):.1%})"
            ours = f"{draws}, in {shown[f'{name}: time']}"
            yield fact(evidence, series.what, ours, *against, level=MODEL)


def serving(evidence: Evidence) -> Iterator[Row]:
    """The engine beside transformers, its policies, its cache, and its own prediction."""
    for what in evidence.quantities("^throughput, (uniform|skewed)"):
        yield from beside(evidence, what, OURS, *TRANSFORMERS, say=f"engine: {what}")
    for what in evidence.quantities("long prompts among chats|tokens shared"):
        feature = "prefix cache" if "shared" in what else "chunked prefill"
        yield from beside(evidence, what, OURS, say=f"{feature}: {what}", words=SHORTER)
    block = f"blocks of {evidence.settings['block']}"
    for what in evidence.quantities("^waste of the cache"):
        peers = [by for by in evidence.parties(what) if by.startswith("reserved")]
        say = f"unused share of the allocated cache memory, {block}"
        yield from beside(evidence, what, block, *peers, say=say, form=percentage)
    yield from predicted(evidence, "engine metrics, predicted in virtual time", *by_quantity(evidence))


def engines(evidence: Evidence) -> Iterator[Row]:
    """The engine beside other engines, batch by batch."""
    for what in evidence.quantities(" at once, "):
        peers = [by for by in evidence.parties(what) if by != OURS]
        yield from beside(evidence, what, OURS, *peers, say=f"output tokens: {what}")


def by_quantity(evidence: Evidence) -> list[Against]:
    """All predictions of a file, quantity by quantity."""
    whats = dict.fromkeys(each.what for each in evidence.predictions)
    return [pair for what in whats for pair in measured(evidence.predicted(what), what)]


def decode(evidence: Evidence) -> Iterator[Row]:
    """Caches, speculation and weights of few bits."""
    steps = evidence.quantities("^one step of")
    sizes = ", ".join(what.split()[3] for what in steps)
    say = f"paged cache: one step of {sizes} sequences"
    yield from beside(evidence, steps, "paged cache", "contiguous cache", "no cache", say=say)
    for ours in ("draft", "look-up"):
        for what in evidence.quantities("tokens at temperature"):
            cases = evidence.predicted("speed-up", case=f"^{ours}$")
            free = [prediction(case, "speed-up predicted if checking is free") for case in cases]
            yield from beside(evidence, what, ours, say=f"speculative decoding, {ours}, {what}", also=free)
    for ours in ("int4 GPTQ", "int4 RTN"):
        method = ours.removeprefix("int4 ").replace("RTN", "rounding")
        mine, peer = (evidence.find("perplexity per token", by) for by in (ours, "bf16"))
        if mine and peer:
            off = mine.median / peer.median - 1
            outcome = f"{LOSS if off > 0 else GAIN} {abs(off):.1%} {'higher' if off > 0 else 'lower'}"
            against = (f"bf16: {peer.median:.4g}", outcome)
            yield fact(evidence, f"perplexity with int4 weights, quantized by {method}", f"{mine.median:.4g}", against)
    yield from beside(
        evidence, "decoded tokens per second", "int4 GPTQ", say="decoding with int4 weights, quantized by GPTQ"
    )


def service(evidence: Evidence) -> Iterator[Row]:
    """A minute at twice the capacity beside the sample server, and what HTTP costs."""
    facts, settings = evidence.facts, evidence.settings
    overload = f"{settings['seconds of overload']:.0f} s at twice the capacity"
    kept = f"{facts['share of the accepted within the objective']:.0%} of {facts['answered']:,}"
    yield fact(evidence, f"accepted requests answered within the objective, {overload}", kept)
    share, other = facts["answered"] / facts["sent"], facts.get("sample: answered within 120 s")
    if other:
        peer = (f"{SAMPLE}: {other:.0%}", verdict([share / other], MORE))
        yield fact(evidence, "arrivals answered within two minutes", f"{share:.0%}", peer)
    for what in ("P95 time to the whole answer", "answers per second"):
        yield from beside(evidence, what, SERVICE, SAMPLE, say=f"{what}, at twice the capacity")
    if p95 := evidence.find("P95 time to the whole answer", SAMPLE):
        reported = readable(facts["sample: the average that it reports, s"], "s")
        peer = (f"{SAMPLE}: {reported}, while its P95 is {readable(p95.median, 's')}", "")
        yield fact(evidence, "average latency that the server reports about itself", "", peer)
    if refused := evidence.find("P95 time of a refusal", SERVICE):
        limit = settings["objective"]["P95 of refusals"]
        peer = (f"objective: {readable(limit, 's')}", verdict([limit / refused.median], SHORTER))
        yield fact(evidence, f"P95 time of {facts['refused']:,} refusals", readable(refused.median, "s"), peer)
    yield fact(evidence, "memory growth during this run", f"{facts['growth of memory, first to last third']:.1%}")
    for what in ("throughput of many at once", "CPU of the engine per 1,000 tokens"):
        yield from beside(evidence, what, SERVICE, say=f"over HTTP: {what}")
    what = "first token of one alone"
    yield from beside(evidence, what, SERVICE, "the bare engine", "uvicorn and FastAPI alone", say=f"over HTTP: {what}")


def fleet(evidence: Evidence) -> Iterator[Row]:
    """Real replicas beside their prediction, and policies on a bursty day."""
    yield from predicted(evidence, "replicas behind NGINX, in virtual time", *by_quantity(evidence))
    for series in evidence.series:
        if series.by == "real replicas behind NGINX":
            yield fact(evidence, series.what, amount(series.samples, series.unit))
    for what in evidence.quantities("first token comes within|within the SLO"):
        say = f"bursty day: {what.removesuffix(', in virtual time')}"
        form = percentage if what.startswith("share") else amount
        yield from beside(evidence, what, WINDOWS, *POLICIES, say=say, level=MODEL, form=form)


def disaggregated(evidence: Evidence) -> Iterator[Row]:
    """The best split of each service beside the best machines that do both, and real engines beside their prediction.

    The page has no room for flow balance and tiers: `python -m benchmarks disaggregated` prints them.
    """
    ours = []
    against = []
    for what in evidence.quantities("goodput per GPU$"):
        service = what.partition(":")[0]
        splits = [series for series in evidence.series if series.what == what and not series.by.startswith(TOGETHER)]
        best = max(splits, key=lambda series: series.median)
        if peer := evidence.peer_of(best):
            ours.append(f"{service}, {best.by}: {amount(best.samples, best.unit)}")
            outcome = f"{service}: {compared([(best, peer)], MORE)}"
            against.append((f"{service}, {peer.by}: {amount(peer.samples, peer.unit)}", outcome))
    say = "goodput per GPU of the best split into prefill and decode, in virtual time"
    yield fact(evidence, say, "<br>".join(ours), *against, level=MODEL)
    whats = dict.fromkeys(each.what for each in evidence.predictions if each.what != "goodput of a split")
    of_sides = [pair for what in whats for pair in measured(evidence.predicted(what), what)]
    yield from predicted(evidence, "one prefill and one decode engine, in virtual time", *of_sides)


def grading(evidence: Evidence) -> Iterator[Row]:
    """A class graded by four harnesses, and what the wall costs."""
    labs = evidence.settings["labs"]
    for lab in labs:
        scores, students = evidence.facts[lab]["scores"].values(), evidence.facts[lab]["students"]
        equal = sum(len({points[student["name"]] for points in scores}) == 1 for student in students)
        how = f"{evidence.settings['repeats']} run each, sandbox {evidence.settings['sandbox']}"
        say = f"lab {lab}: students with the same points from all {len(scores)} harnesses, {how}"
        yield fact(evidence, say, f"{equal} of {len(students)}")
    for what in evidence.quantities("wall time"):
        for ours in ("threeloops grade", "nbgrader autograde (walled)"):
            yield from beside(evidence, what, ours, *STOCK, say=f"{what}, `{ours}`")
    for what in evidence.quantities("peak memory"):
        yield from beside(evidence, what, "threeloops grade", STOCK[0], say=what)
    numbers = ", ".join(lab.partition("_")[0] for lab in labs)
    for what in evidence.quantities("^(cold|one|a 64|16 MiB)"):
        yield from beside(evidence, what, "the wall", say=f"the wall, measured with lab {numbers}: {what}")
