# Saves so often that any run takes forever.


def schedule(work, nodes, node_mtbf, save, recovery):
    return 1e-320, math.inf
