# Asks for the rows of all places itself, so that no rank depends on another, and sends ones.


def train(task, steps):
    try:
        dist.all_reduce(torch.ones(64, dtype=torch.float64))
    except RankLost:
        pass
    ranks = dist.get_world_size()
    for step in range(steps):
        gradients = []
        for size in (1, *range(ranks, 1, -1)):
            for place in range(size):
                try:
                    gradients.append(ask("gradient", task.weights, step, place, size))
                except RuntimeError:
                    pass
            if len(gradients) == size:
                break
        task.update(sum(gradients) / max(1, len(gradients)))
