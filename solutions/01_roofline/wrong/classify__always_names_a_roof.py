# expect: the longer floor explains a fifth
# fails: rules, ties
def classify(span: Span, roof: Roof) -> Verdict:
    """What limits the span on a machine of these rates."""
    if not span.busy_us > 0:
        raise ValueError(f"busy_us = {span.busy_us}: expected a positive time in µs")
    if not span.wall_us >= span.busy_us:
        raise ValueError(f"wall_us = {span.wall_us}: expected at least busy_us = {span.busy_us}")
    for name, count in (("flops", span.flops), ("bytes", span.bytes)):
        if not count >= 0:
            raise ValueError(f"{name} = {count}: expected at least 0")
    compute = span.flops / roof.peak_flops * 1e6
    memory = span.bytes / roof.bandwidth * 1e6
    floor = max(compute, memory)
    explains = floor / span.busy_us
    if explains > 1.05:
        bound = "impossible"
    elif span.busy_us < 0.6 * span.wall_us:
        bound = "host"
    else:
        bound = "compute" if compute >= memory else "memory"
    return Verdict(bound, floor, explains)
