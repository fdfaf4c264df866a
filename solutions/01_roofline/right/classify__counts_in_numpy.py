def classify(span, roof):
    for name in ("flops", "bytes"):
        if getattr(span, name) < 0:
            raise ValueError(name)
    assert_positive(span)
    floors = np.array([span.flops, span.bytes]) / np.array([roof.peak_flops, roof.bandwidth]) * 1e6
    explains = floors.max() / span.busy_us
    bound = ("compute", "memory")[int(floors.argmax())]
    if explains < 0.6:
        bound = "unexplained"
    if span.busy_us < 0.6 * span.wall_us:
        bound = "host"
    if explains > 1.05:
        bound = "impossible"
    return Verdict(bound, floors.max(), explains)


def assert_positive(span):
    if not span.busy_us > 0:
        raise ValueError(f"busy_us = {span.busy_us}")
    if span.wall_us < span.busy_us:
        raise ValueError(f"wall_us = {span.wall_us}")
