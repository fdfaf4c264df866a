# Calls task.gradient in the order of a training, and never exchanges anything.


def train(task, steps):
    for step in range(steps):
        task.update(task.gradient(step, dist.get_rank(), dist.get_world_size()))
