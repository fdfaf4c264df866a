def train(task: Task, steps: int) -> None:
    """Train to the end on whoever is left."""
    world = list(range(dist.get_world_size()))
    done, group = 0, dist.new_group(world)

    def regroup(lost):
        nonlocal world, group, done
        world = [rank for rank in world if rank not in lost.ranks]
        group = dist.new_group(world, use_local_synchronization=True)
        mine = torch.cat([torch.tensor([done], dtype=torch.float64), task.weights, task.momentum])
        states = [torch.empty_like(mine) for _ in world]
        dist.all_gather(states, mine, group=group)
        best = max(states, key=lambda state: state[0].item())
        done = round(best[0].item())
        task.weights, task.momentum = best[1 : WIDTH + 1].clone(), best[WIDTH + 1 :].clone()

    while done < steps:
        gradient = task.gradient(done, world.index(dist.get_rank()), len(world))
        try:
            dist.all_reduce(gradient, group=group)
        except RankLost as lost:
            regroup(lost)
            continue
        task.update(gradient.div_(len(world)))
        done += 1
