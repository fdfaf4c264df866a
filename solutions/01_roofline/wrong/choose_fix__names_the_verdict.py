# expect: expected one of CUDA graph
def choose_fix(trace: list[Call], roof: Roof) -> str:
    """The fix that saves most of the wall time."""
    wall, busy = wall_us(trace), sum(call.busy_us for call in trace)
    if busy < 0.7 * wall:
        without_waits = wall_us([replace(call, waits=False) for call in trace])
        return "no waiting" if without_waits < 0.8 * wall else "CUDA graph"
    held = {"compute": 0.0, "memory": 0.0, "unexplained": 0.0}
    for call in trace:
        compute, memory = call.flops / roof.peak_flops * 1e6, call.bytes / roof.bandwidth * 1e6
        if max(compute, memory) < 0.6 * call.busy_us:
            held["unexplained"] += call.busy_us
        else:
            held["compute" if compute >= memory else "memory"] += call.busy_us
    return max(held, key=held.get)
