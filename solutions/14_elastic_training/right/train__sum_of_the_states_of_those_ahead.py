def train(task: Task, steps: int) -> None:
    """Train to the end on whoever is left."""
    group, left, step = None, list(range(dist.get_world_size())), 0
    me = dist.get_rank()
    while step < steps:
        try:
            g = task.gradient(step, left.index(me), len(left))
            dist.all_reduce(g, group=group)
        except RankLost as lost:
            left = sorted(set(left) - set(lost.ranks))
            group = dist.new_group(left, use_local_synchronization=True)
            furthest = torch.tensor(step)
            dist.all_reduce(furthest, dist.ReduceOp.MAX, group=group)
            ahead = torch.tensor(float(step == furthest))
            state = torch.cat([task.weights, task.momentum, ahead.double()[None]]) * ahead
            dist.all_reduce(state, group=group)
            task.weights.copy_(state[:WIDTH] / state[-1])
            task.momentum.copy_(state[WIDTH:-1] / state[-1])
            step = int(furthest)
            continue
        task.update(g / len(left))
        step += 1
