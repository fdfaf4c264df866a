def classify(span: Span, roof: Roof) -> Verdict:
    if span.busy_us <= 0:
        raise ValueError("busy_us must be positive")
    if span.busy_us > span.wall_us:
        raise ValueError("wall_us must be at least the busy time")
    if span.flops < 0:
        raise ValueError("flops must not be negative")
    if span.bytes < 0:
        raise ValueError("bytes must not be negative")
    per_us = roof.peak_flops / 1e6, roof.bandwidth / 1e6
    compute, memory = span.flops / per_us[0], span.bytes / per_us[1]
    if memory > compute:
        bound, floor = "memory", memory
    else:
        bound, floor = "compute", compute
    ratio = floor / span.busy_us
    if ratio > 1.05:
        return Verdict("impossible", floor, ratio)
    if span.wall_us * 0.6 > span.busy_us:
        return Verdict("host", floor, ratio)
    return Verdict("unexplained" if ratio < 0.6 else bound, floor, ratio)
