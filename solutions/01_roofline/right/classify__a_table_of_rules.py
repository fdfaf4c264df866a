def classify(span, roof):
    problems = {
        "busy_us": span.busy_us <= 0,
        "wall_us": span.wall_us < span.busy_us,
        "flops": span.flops < 0,
        "bytes": span.bytes < 0,
    }
    for name, is_wrong in problems.items():
        if is_wrong:
            raise ValueError(f"{name} = {getattr(span, name)}")
    floors = {"compute": 1e6 * span.flops / roof.peak_flops, "memory": 1e6 * span.bytes / roof.bandwidth}
    roof_above = max(floors, key=floors.get)
    explains = floors[roof_above] / span.busy_us
    rules = [
        ("impossible", explains > 1.05),
        ("host", span.busy_us / span.wall_us < 0.6),
        (roof_above, explains >= 0.6),
        ("unexplained", True),
    ]
    return Verdict(next(name for name, fits in rules if fits), floors[roof_above], explains)
