def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    mtbf = job.node_mtbf / job.nodes
    pairs = [(s, t) for t in job.intervals for s in range(job.most_spares, -1, -1)]
    return max(
        pairs,
        key=lambda pair: (
            useful_share(
                pair[1], job.save, job.restart + no_spare(pair[0], job.repair, mtbf) * job.repair / (pair[0] + 1), mtbf
            )
            / (job.nodes + pair[0])
        ),
    )
