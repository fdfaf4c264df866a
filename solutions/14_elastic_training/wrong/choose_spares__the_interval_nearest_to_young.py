# expect: of the work per node is useful
def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    mtbf = job.node_mtbf / job.nodes
    interval = min(job.intervals, key=lambda each: abs(each - math.sqrt(2 * job.save * mtbf)))

    def worth(spares):
        recovery = job.restart + no_spare(spares, job.repair, mtbf) * job.repair / (spares + 1)
        return useful_share(interval, job.save, recovery, mtbf) / (job.nodes + spares)

    return max(range(job.most_spares + 1), key=worth), interval
