"""Rows of the tables: one fact each, with its gain or loss against each named peer in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.report.evidence import Evidence
from benchmarks.result import Prediction, Series, digits, readable, scale

Words = tuple[str, str]
"""How a ratio above 1 and one below 1 are called: ("faster", "slower")."""

Against = tuple[str, str]
"""A peer with what it reached, and our gain or loss against it."""

FASTER: Words = ("faster", "slower")
LESS: Words = ("less", "more")
MORE: Words = ("more", "less")
FEWER: Words = ("fewer", "more")
SHORTER: Words = ("shorter", "longer")
LOWER: Words = ("lower", "higher")
HIGHER: Words = ("higher", "lower")
MODEL, PUBLISHED = "model", "published"
GAIN, LOSS, SAME = "▲", "▼", "="

NEARLY = 0.005
"""Ratios that differ from 1 by less than this count as the same."""

SMALL = 1.1
"""A ratio below this reads better in percent: 1.05 is "5% faster"."""

CLOSE = 0.05
"""The limit for close predictions. Below it a row says how close they are, above it on which side they lie."""

FEW = 4
"""The most differences from predictions that are listed one by one."""


PLAIN = {
    "after forgetting": "not in the page cache",
    "samples/s behind it": "samples/s after the first sample",
    "time to the whole answer": "time to the complete answer",
    "throughput of many at once": "throughput of many requests at once",
    "first token of one alone": "time to first token of a single request",
    "requests without an answer or an error, a replica killed": "requests with neither an answer nor an error after "
    "a replica was killed",
    "requests answered with an error, a replica killed": "requests answered with an error after a replica was killed",
    "peak memory, resident sizes": "peak memory, sum of resident sizes",
    "reserved: prompt and longest answer asked for": "reserving the prompt and the longest answer requested",
    "reserved: the model's": "reserving the model's",
    "shared pages once": "shared pages counted once",
    "one launch over the wall, nothing judged": "one launch across the wall, without judging it",
    "CPU of the engine per": "CPU time of the engine per",
    "liveness alone, one /health": "one /health for both probes",
    "a fixed number for the peak": "a fixed number of replicas, sized for the peak",
    "(svc-": "(claim svc-",
    "; `make peers` does": "; `make peers` installs it",
}
"""Names that evidence files record, and how the page says them: the files stay as they were written."""


@dataclass(frozen=True)
class Row:
    """One fact: what we reached, and how that compares with one peer, several or none."""

    quantity: str
    ours: str
    against: tuple[Against, ...]
    level: str
    path: str

    def cells(self) -> tuple[str, ...]:
        peers, outcomes = ([pair[side] for pair in self.against] for side in (0, 1))
        outcome = outcomes[0] if len(set(outcomes)) == 1 else "<br>".join(outcomes)
        quantity, peer = capital(plain(self.quantity)), plain("<br>".join(peers))
        return quantity, self.ours, peer, outcome, f"[{self.level}]({self.path})"


def fact(evidence: Evidence, quantity: str, ours: str, *against: Against, level: str | None = None) -> Row:
    """A row whose cells are known. Its level is that of the device, unless the number was computed or published."""
    return Row(quantity, ours, against, level or ("GPU" if evidence.on_gpu else "CPU"), evidence.path)


def plain(text: str) -> str:
    """The text of an evidence file in the words of the page."""
    for recorded, shown in PLAIN.items():
        text = text.replace(recorded, shown)
    return text


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def amount(samples: Sequence[float], unit: str) -> str:
    """The median and, if samples differ, the lowest and highest of them: "22.6 ms (21 … 25.3)"."""
    middle = median(samples)
    size, _ = scale(middle, unit)
    text = readable(middle, unit).replace(" 1/s", " per second").strip()
    low, high = digits(min(samples) / size), digits(max(samples) / size)
    return text if low == high else f"{text} ({low} … {high})"


def percentage(samples: Sequence[float], unit: str) -> str:
    """The median of parts of a whole."""
    return f"{digits(100 * median(samples))}%"


def beside(
    evidence: Evidence,
    whats: str | Sequence[str],
    ours: str,
    *peers: str,
    say: str,
    words: Words | None = None,
    level: str | None = None,
    form: Callable[[Sequence[float], str], str] = amount,
    also: Iterable[Against] = (),
) -> Iterator[Row]:
    """One quantity, or several of a kind in one row, as `ours` and as each of the peers reached it.

    Without `peers` the peer is the one that the file marks; `also` joins other comparisons of the same quantity. Yields
    nothing if there is no peer to compare with.
    """
    against, mine = [], ""
    for peer in peers or ("",):
        pairs = []
        for what in [whats] if isinstance(whats, str) else whats:
            series = evidence.find(what, ours)
            other = evidence.find(what, peer) if peer else series and evidence.peer_of(series)
            if series and other:
                pairs.append((series, other))
        if pairs:
            cells = [form(_numbers([pair[side] for pair in pairs]), pairs[0][0].unit) for side in (0, 1)]
            mine = mine or cells[0]
            against.append((f"{pairs[0][1].by}: {cells[1]}", compared(pairs, words or words_for(pairs[0][0]))))
    if against:
        yield fact(evidence, say, mine, *against, *also, level=level)


def _numbers(series: Sequence[Series]) -> Sequence[float]:
    """All samples of one series, or the medians of several."""
    return series[0].samples if len(series) == 1 else [each.median for each in series]


def words_for(series: Series) -> Words:
    if series.unit == "s" or series.unit.endswith(("/s", "CPU second")):
        return FASTER
    return LESS if series.better == "lower" else MORE


def compared(pairs: Sequence[tuple[Series, Series]], words: Words) -> str:
    """The verdict over pairs of ours and a peer's."""
    if all(ours.median and peer.median for ours, peer in pairs):
        return verdict([ours.times_better(peer) for ours, peer in pairs], words)
    gains = {_gain(ours, peer) for ours, peer in pairs}
    if gains == {0}:
        return f"{SAME} as many"
    return f"{GAIN} {words[0]}" if min(gains) >= 0 else f"{LOSS} {words[1]}" if max(gains) <= 0 else "mixed"


def _gain(ours: Series, peer: Series) -> int:
    """1, 0 or -1: a comparison that also works if a median is 0 and no ratio exists."""
    less = (ours.median < peer.median) - (ours.median > peer.median)
    return less if ours.better == "lower" else -less


def verdict(ratios: Sequence[float], words: Words) -> str:
    """How many times better (above 1) or worse (below 1) we are, the median first.

    [1.5] → "▲ 1.5 times faster"; [0.8, 1.3, 1.4] → "▲ 1.3 times faster (1.25 times slower … 1.4 times faster)".
    """
    if not ratios:
        return ""
    ordered = sorted(ratios, reverse=max(ratios) < 1)
    middle, *ends = (_ratio(value, words) for value in (median(ratios), ordered[0], ordered[-1]))
    sign = {words[0]: GAIN, words[1]: LOSS}.get(middle[1], SAME)
    text = f"{sign} {' '.join(middle)}"
    if ends[0] == ends[1]:
        return text
    if ends[0][1] == ends[1][1] and ends[0][0][-1] == ends[1][0][-1]:
        low, high = (end[0] for end in ends)
        return f"{text} ({low.removesuffix(' times') if high.endswith('times') else low} … {high})"
    return f"{text} ({' '.join(ends[0])} … {' '.join(ends[1])})"


def _ratio(value: float, words: Words) -> tuple[str, str]:
    """1.5 → ("1.5 times", "faster"); 0.95 → ("5%", "slower"); 1 → ("the", "same")."""
    word, size = (words[0], value) if value > 1 else (words[1], 1 / value)
    if size < 1 + NEARLY:
        return "the", "same"
    return f"{100 * (size - 1):.0f}%" if size < SMALL else f"{digits(size)} times", word


def predicted(evidence: Evidence, say: str, *against: Against, level: str | None = None) -> Iterator[Row]:
    """A row about predictions, each of `against` from `measured`; none if nothing was predicted."""
    if against:
        yield fact(evidence, say, "predicted", *against, level=level)


def measured(cases: Sequence[Prediction], name: str = "measured") -> list[Against]:
    """How far the measurements, called `name`, lie from what was computed before; empty without a prediction."""
    if not cases:
        return []
    text = f"{name}, {len(cases)} cases"
    if len(cases) == 1:
        found, expected = (amount([value], cases[0].unit) for value in (cases[0].measured, cases[0].predicted))
        text = f"{name}: measured {found}, predicted {expected}"
    return [(text, distance([each.difference for each in cases]))]


def prediction(case: Prediction, name: str = "predicted") -> Against:
    """Return the value that was predicted, beside the measurement that stands in our column."""
    return f"{name}: {amount([case.predicted], case.unit)}", distance([case.difference])


def distance(off: Sequence[float]) -> str:
    """How far measurements are from predictions: "within 0.2%", "measured 3.9% less", "measured −4.1%, +38.0%"."""
    largest = max(map(abs, off))
    if not largest:
        return "as predicted"
    if len(off) == 1:
        return f"measured {off[0] + 1:.1f} times as much" if off[0] >= 1 else f"measured {_more(off[0])}"
    if largest < CLOSE:
        return f"within {within(largest)}"
    if len(off) <= FEW:
        return f"measured {', '.join(map(_signed, off))}"
    return f"measured {_signed(min(off))} … {_signed(max(off))}"


def _more(part: float) -> str:
    return f"{abs(part):.1%} {'more' if part > 0 else 'less'}"


def _signed(part: float) -> str:
    return f"{100 * part:+.{0 if abs(part) >= 1 else 1}f}%".replace("-", "−")


def within(part: float) -> str:
    """A bound in percent, rounded up so that it holds: 0.00101 → "0.2%". A tiny one keeps its first digit."""
    places = 1 if part >= 0.001 or not part else -math.floor(math.log10(100 * part))
    steps = math.ceil(round(100 * part * 10**places, 6))
    return f"{steps / 10**places:.{places}f}%"
