def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    mtbf = job.node_mtbf / job.nodes
    interval = max(job.intervals, key=lambda each: useful_share(each, job.save, 0.0, mtbf))

    def cost(spares):
        mean = job.restart + no_spare(spares, job.repair, mtbf) * job.repair / (spares + 1)
        return math.exp(mean / mtbf) * (job.nodes + spares)

    return min(range(job.most_spares + 1), key=cost), interval
