# expect: if a wait was followed by a second restart
def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    mtbf, best = job.node_mtbf / job.nodes, (0.0, 0, 0.0)
    for spares in range(job.most_spares + 1):
        recovery = job.restart + no_spare(spares, job.repair, mtbf) * (job.repair / (spares + 1) + job.restart)
        for interval in job.intervals:
            worth = useful_share(interval, job.save, recovery, mtbf) * job.nodes / (job.nodes + spares)
            best = max(best, (worth, spares, interval))
    return best[1], best[2]
