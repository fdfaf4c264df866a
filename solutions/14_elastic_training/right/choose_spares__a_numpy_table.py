import numpy as np


def choose_spares(job: Job) -> tuple[int, float]:
    """Hot spares, and seconds of work between saves."""
    mtbf, spares = job.node_mtbf / job.nodes, np.arange(job.most_spares + 1)
    recovery = [job.restart + no_spare(s, job.repair, mtbf) * job.repair / (s + 1) for s in spares]
    worth = np.array([[useful_share(i, job.save, r, mtbf) for i in job.intervals] for r in recovery])
    best = np.unravel_index(np.argmax(worth / (job.nodes + spares)[:, None]), worth.shape)
    return best[0], job.intervals[best[1]]
