def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    m = job.node_mtbf / job.nodes
    by_spares = torch.tensor(
        [
            -(job.restart + no_spare(s, job.repair, m) * job.repair / (s + 1)) / m - math.log(job.nodes + s)
            for s in range(job.most_spares + 1)
        ],
        dtype=torch.float64,
    )
    by_interval = torch.tensor(
        [math.log(t / math.expm1((t + job.save) / m)) for t in job.intervals], dtype=torch.float64
    )
    return int(by_spares.argmax()), job.intervals[int(by_interval.argmax())]
