# expect: again and again: does this rank wait
# fails: values, torn, steps
def train(task: Task, steps: int) -> None:
    """Train to the end on whoever is left."""
    members, group, done = list(range(dist.get_world_size())), None, 0
    while done < steps:
        try:
            gradient = task.gradient(done, members.index(dist.get_rank()), len(members))
            dist.all_reduce(gradient)
            task.update(gradient / len(members))
            done += 1
        except RankLost as lost:
            members = [rank for rank in members if rank not in lost.ranks]
            group = dist.new_group(members, use_local_synchronization=True)
            taken = [torch.empty(1) for _ in members]
            dist.all_gather(taken, torch.tensor([float(done)]), group=group)
            done = int(max(taken))
            ahead = members[taken.index(max(taken))]
            dist.broadcast(task.weights, ahead, group=group)
            dist.broadcast(task.momentum, ahead, group=group)
