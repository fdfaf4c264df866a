# expect: ms per sample: expected at most
def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    transfer = loop.sample_bytes / loop.bandwidth
    cycle = loop.latency + transfer  # of a worker
    pace = 1.05 * max(loop.step, transfer, cycle / 16)
    return Settings(math.ceil(cycle / pace), math.ceil((cycle + loop.step) / pace) - 1)
