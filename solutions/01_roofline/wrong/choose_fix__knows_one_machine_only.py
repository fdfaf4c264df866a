# expect: four times the rates
def choose_fix(trace: list[Call], roof: Roof) -> str:
    """The fix that saves most of the wall time."""
    wall, busy = wall_us(trace), sum(call.busy_us for call in trace)
    if busy < 0.7 * wall:
        without_waits = wall_us([replace(call, waits=False) for call in trace])
        return "no waiting" if without_waits < 0.8 * wall else "CUDA graph"
    held = {"faster format": 0.0, "fusion": 0.0, "better kernels": 0.0}
    for call in trace:
        compute, memory = call.flops / ROUND.peak_flops * 1e6, call.bytes / ROUND.bandwidth * 1e6
        if max(compute, memory) < 0.6 * call.busy_us:
            held["better kernels"] += call.busy_us
        else:
            held["faster format" if compute >= memory else "fusion"] += call.busy_us
    return max(held, key=held.get)
