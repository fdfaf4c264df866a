def choose_fix(trace: list[Call], roof: Roof) -> str:
    busy = sum(call.busy_us for call in trace)
    saves = dict.fromkeys(FIXES, 0.0)
    chain = []
    for call in [*trace, None]:
        if call is not None and call.flops / call.bytes < 10:
            chain.append(call.busy_us)
        else:
            saves["fusion"] += sum(chain) - max(chain, default=0.0)
            chain = []
        if call is None:
            break
        compute, memory = call.flops / roof.peak_flops * 1e6, call.bytes / roof.bandwidth * 1e6
        if compute < 0.6 * call.busy_us and memory < 0.6 * call.busy_us:
            saves["better kernels"] += call.busy_us - max(compute, memory) / 0.8
        elif compute >= memory:
            saves["faster format"] += call.busy_us / 2
    wall = wall_us(trace)
    saves["no waiting"] = wall - wall_us([replace(call, waits=False) for call in trace])
    fast = sum(c.issue_us if i == 0 or trace[i - 1].waits else 0.5 for i, c in enumerate(trace))
    saves["CUDA graph"] = (wall - max(busy, fast)) if not any(c.waits for c in trace[:-2]) else 0.0
    if wall > 1.3 * busy:
        few = sum(call.waits for call in trace) < len(trace) / 10
        return "CUDA graph" if few else "no waiting"
    return max(saves, key=saves.get)
