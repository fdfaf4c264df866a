# expect: if idle spares failed as well
def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    best = (0.0, 0, 0.0)
    for spares in range(job.most_spares + 1):
        mtbf = job.node_mtbf / (job.nodes + spares)
        recovery = job.restart + no_spare(spares, job.repair, mtbf) * job.repair / (spares + 1)
        for interval in job.intervals:
            worth = useful_share(interval, job.save, recovery, mtbf) * job.nodes / (job.nodes + spares)
            best = max(best, (worth, spares, interval))
    return best[1], best[2]
