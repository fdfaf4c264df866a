def choose_fix(trace, roof):
    issue, busy = np.array([c.issue_us for c in trace]), np.array([c.busy_us for c in trace])
    compute = np.array([c.flops for c in trace]) / roof.peak_flops * 1e6
    memory = np.array([c.bytes for c in trace]) / roof.bandwidth * 1e6
    idle = wall_us(trace) - busy.sum()
    if idle > 0.35 * wall_us(trace):
        after_waits = np.array([False] + [c.waits for c in trace[:-1]])
        return FIXES[1] if issue[after_waits].sum() > 0.5 * idle else FIXES[0]
    floor = np.maximum(compute, memory)
    slow = busy[floor < 0.6 * busy].sum()
    shares = [
        busy[(floor >= 0.6 * busy) & (memory > compute)].sum(),
        busy[(floor >= 0.6 * busy) & (compute >= memory)].sum(),
    ]
    return FIXES[2 + int(np.argmax([*shares, slow]))]
