"""Python objects between ranks."""

import torch
import torch.distributed as dist

from programs import program


@program(ranks=3)
def broadcast_of_a_configuration():
    """Broadcast a configuration from rank 0 with broadcast_object_list."""
    config = [{"lr": 3e-4, "layers": [1, 2], "name": "tiny"}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(config, src=0)
    return config[0]


@program(ranks=3)
def gathered_metrics():
    """Gather a dictionary of metrics from all ranks with all_gather_object."""
    metrics = [None] * dist.get_world_size()
    dist.all_gather_object(metrics, {"rank": dist.get_rank(), "words": ["x"] * dist.get_rank()})
    return metrics


@program(ranks=2)
def objects_on_rank_0():
    """Collect objects on rank 0 alone with gather_object."""
    found = [None, None] if dist.get_rank() == 0 else None
    dist.gather_object({"loss": 0.5 * dist.get_rank()}, found, dst=0)
    return found


@program(ranks=3)
def scattered_file_names():
    """Give each rank its list of files with scatter_object_list."""
    files = [[f"shard{n}.bin", n] for n in range(3)] if dist.get_rank() == 0 else [None] * 3
    mine = [None]
    dist.scatter_object_list(mine, files, src=0)
    return mine[0]


@program(ranks=2)
def objects_as_messages():
    """Send objects from one rank to another with send_object_list and recv_object_list."""
    objects = [{"step": 7}, (1, 2), "done"] if dist.get_rank() == 0 else [None] * 3
    if dist.get_rank() == 0:
        dist.send_object_list(objects, dst=1)
    else:
        dist.recv_object_list(objects, src=0)
    return objects


@program(ranks=2)
def tensors_inside_of_objects():
    """Gather dictionaries that contain tensors."""
    found = [None, None]
    dist.all_gather_object(found, {"weights": torch.arange(3.0) + dist.get_rank()})
    return [each["weights"].tolist() for each in found]


@program(ranks=3)
def objects_within_a_group():
    """Gather objects within a group."""
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return None
    found = [None, None]
    dist.all_gather_object(found, dist.get_rank(), group=group)
    return found


@program(ranks=2)
def an_error_that_all_ranks_learn():
    """Tell all ranks that one of them failed, so that all stop together."""
    try:
        if dist.get_rank() == 1:
            raise ValueError("no such file")
        problem = None
    except ValueError as error:
        problem = repr(error)
    problems = [None, None]
    dist.all_gather_object(problems, problem)
    return problems
