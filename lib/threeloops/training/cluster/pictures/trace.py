"""A run as a trace for ui.perfetto.dev and chrome://tracing.

The format is Google's *Trace Event Format*: a process for each rank, with a thread for each of its timelines and one
for each link on which it sends. Times are µs, in whole nanoseconds, which is all that Perfetto keeps.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threeloops.files import replace_text
from threeloops.training.cluster.cluster import Run
from threeloops.training.cluster.machine.calls import COMPUTE
from threeloops.units import readable_bytes

__all__ = ["write_trace"]

_Thread = tuple[int, int, int]
"""(rank, 0, timeline), or (rank, 1, target) for the link to another rank."""


def write_trace(run: Run, path: Path | str) -> None:
    """Write the run completely or not at all; the same run gives the same bytes.

    A span is a slice on its timeline. A message is a slice on its link for as long as the link is busy. A flow leads
    from this slice to an instant on the receiver's timeline, at which the message arrives.
    """
    head = {"displayTimeUnit": "ms", "otherData": {"topology": run.topology.name, "seconds": run.seconds}}
    opening = json.dumps(head, ensure_ascii=False)[:-1]
    events = ",\n".join(json.dumps(event, ensure_ascii=False) for event in _events(run))
    replace_text(Path(path), f'{opening}, "traceEvents": [\n{events}\n]}}\n')


def _events(run: Run) -> Iterator[dict[str, Any]]:
    spans = sorted(run.spans, key=lambda s: (s.rank, s.timeline, s.start, s.end))
    messages = sorted(run.messages, key=lambda m: (m.source, m.target, m.start, m.timeline, m.handle))
    threads: set[_Thread] = {(rank, 0, COMPUTE) for rank in range(run.topology.ranks)}
    threads |= {(span.rank, 0, span.timeline) for span in spans}
    for m in messages:
        threads |= {(m.source, 1, m.target), (m.target, 0, m.timeline)}
    numbers = {thread: number for number, thread in enumerate(sorted(threads), start=1 + run.topology.ranks)}

    def event(ph: str, name: str, thread: _Thread, at: float, **fields: Any) -> dict[str, Any]:
        # No number is 0, which Perfetto keeps for the idle process, and none is both a process and a thread.
        place = {"pid": 1 + thread[0], "tid": numbers[thread]}
        return {"ph": ph, "name": name, **place, "ts": _microseconds(_nanoseconds(at)), **fields}

    def slice_(name: str, thread: _Thread, start: float, end: float, cat: str, args: dict[str, Any]) -> dict[str, Any]:
        duration = _microseconds(_nanoseconds(end) - _nanoseconds(start))
        return event("X", name, thread, start, dur=duration, cat=cat, args={"start_s": start, "end_s": end, **args})

    for (rank, is_link, what), tid in numbers.items():
        place = {"ph": "M", "pid": 1 + rank, "tid": tid}
        if (is_link, what) == (0, COMPUTE):
            yield place | {"name": "process_name", "args": {"name": f"rank {rank}"}}
            yield place | {"name": "process_sort_index", "args": {"sort_index": rank}}
        name = f"link to rank {what}" if is_link else "compute" if what == COMPUTE else "communication"
        yield place | {"name": "thread_name", "args": {"name": name}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": tid}}
    for span in spans:
        kind = "computation" if span.timeline == COMPUTE else "communication"
        yield slice_(span.what or kind, (span.rank, 0, span.timeline), span.start, span.end, kind, {})
    for number, m in enumerate(messages, start=1):
        link = (m.source, 1, m.target)
        arrival = (m.target, 0, m.timeline)
        more = {"bytes": m.size, "waited_us": 1e6 * (m.start - m.ready), "channel": m.channel, "tag": m.tag}
        name = readable_bytes(m.size)
        flow = {"cat": "message", "id": number}
        # A viewer binds each end of a flow to the event before it on the same thread, at the same time.
        yield slice_(name, link, m.start, m.left, "message", more | ({"where": m.where} if m.where else {}))
        yield event("s", "message", link, m.start, **flow)
        yield event("i", f"{name} from rank {m.source}", arrival, m.arrived, cat="message", s="t")
        yield event("f", "message", arrival, m.arrived, bp="e", **flow)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> float:
    """Perfetto multiplies by 1000 and cuts off: a product below the whole number would let neighbours overlap."""
    exact = nanoseconds / 1000
    return exact if int(exact * 1000) >= nanoseconds else math.nextafter(exact, math.inf)
