# expect: times what is needed
def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    transfer = loop.sample_bytes / loop.bandwidth
    cycle = loop.latency + transfer + loop.decode  # of a worker
    pace = 1.05 * max(loop.step, transfer, cycle / 16)
    return Settings(math.ceil(cycle / pace), min(48, 2 * math.ceil(cycle / pace)))
