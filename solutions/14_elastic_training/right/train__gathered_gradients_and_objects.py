def train(task: Task, steps: int) -> None:
    """Train to the end on whoever is left."""
    alive, group, number = tuple(range(dist.get_world_size())), None, 0
    while True:
        try:
            for step in range(number, steps):
                mine = task.gradient(step, alive.index(dist.get_rank()), len(alive))
                all_of_them = [torch.empty_like(mine) for _ in alive]
                dist.all_gather(all_of_them, mine, group=group)
                task.update(torch.stack(all_of_them).mean(0))
                number = step + 1
            return
        except RankLost as lost:
            alive = tuple(rank for rank in alive if rank not in lost.ranks)
            group = dist.new_group(list(alive), use_local_synchronization=True)
            known = [None] * len(alive)
            dist.all_gather_object(known, (number, task.weights, task.momentum), group)
            number, weights, momentum = max(known, key=lambda each: each[0])
            task.weights.copy_(weights)
            task.momentum.copy_(momentum)
