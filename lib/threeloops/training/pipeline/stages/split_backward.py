"""A backward pass in two parts: the gradient of the input now, those of the weights later.

An autograd node between output and input is needed for the input's gradient. A weight hangs on one or more such nodes,
its joints. The first part runs the nodes from output to input, and keeps the gradients that reach joints. The second
begins at the joints, so it computes only what the weights need and nothing twice, with one exception: if a weight has
several joints, the nodes between them run again. torch.distributed.pipelining does it in the same way (`_backward.py`),
after the `WeightGradStore` of Qi et al. 2023.

In both parts a node is asked only for the gradients that are needed, but only torch's own matrix products respect that.
A custom `torch.autograd.Function` computes both gradients each time, unless it is divided as well. Tensors that the
forward pass saved stay in memory until the second part.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

__all__ = ["input_backward"]

_Node = Any  # torch.autograd.graph.Node


def input_backward(
    output: Tensor, gradient: Tensor | None, x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor | None, Callable[[], None]]:
    """Return the gradient of `x`, a leaf, and a function that adds those of `weights` to their `grad`, to be called
    once.

    If no `x` requires a gradient, the whole backward is left for the second part.

    Args:
        gradient: the gradient of `output`, or None for a loss.
    """
    if not output.requires_grad:
        return None, lambda: None
    parents = _parents(get_gradient_edge(output).node)
    way = _upwards([get_gradient_edge(x).node], parents) if x.requires_grad else set()
    if not way:
        if not weights:
            return None, lambda: None
        return None, partial(torch.autograd.backward, [output], [gradient], inputs=list(weights))
    parts = _parts(weights, parents, way)
    reached: dict[_Node, tuple[Tensor | None, ...]] = {}
    hooks = [joint.register_prehook(partial(reached.__setitem__, joint)) for _, joints in parts for joint in joints]
    try:
        (of_x,) = torch.autograd.grad([output], [x], [gradient], retain_graph=bool(parts))
    finally:
        for hook in hooks:
            hook.remove()

    def rest() -> None:
        for members, joints in parts:
            _weight_backward(members, {joint: reached[joint] for joint in joints})

    return of_x, rest


def _weight_backward(weights: list[Tensor], reached: dict[_Node, tuple[Tensor | None, ...]]) -> None:
    """Run the joints of these weights with the gradients that reached them; those that come from one joint to another
    are not new, and replaced."""
    hooks = [joint.register_prehook(lambda _, grads=grads: grads) for joint, grads in reached.items()]
    edges = [
        (GradientEdge(joint, number), grad)
        for joint, grads in reached.items()
        for number, grad in enumerate(grads)
        if grad is not None
    ]
    try:
        torch.autograd.backward([e for e, _ in edges], [g for _, g in edges], retain_graph=True, inputs=weights)
    finally:
        for hook in hooks:
            hook.remove()


def _parts(
    weights: Iterable[Tensor], parents: dict[_Node, list[_Node]], way: set[_Node]
) -> list[tuple[list[Tensor], set[_Node]]]:
    """Weights that share joints, with all of their joints. A weight that the output does not depend on has none."""
    parts: list[tuple[list[Tensor], set[_Node]]] = []
    for weight in weights:
        joints = _upwards([get_gradient_edge(weight).node], parents, until=way) & way
        joined = [part for part in parts if part[1] & joints]
        parts = [part for part in parts if not part[1] & joints]
        if joints:
            members = [member for part in joined for member in part[0]]
            parts.append(([*members, weight], joints.union(*(part[1] for part in joined))))
    return parts


def _parents(root: _Node) -> dict[_Node, list[_Node]]:
    """Return, for each node below the root, the nodes that pass it a gradient. The root has none."""
    parents: dict[_Node, list[_Node]] = {root: []}
    todo = [root]
    while todo:
        node = todo.pop()
        for child, _ in node.next_functions:
            if child is not None:
                if child not in parents:
                    parents[child] = []
                    todo.append(child)
                parents[child].append(node)
    return parents


def _upwards(
    nodes: Iterable[_Node], parents: dict[_Node, list[_Node]], until: set[_Node] | frozenset[_Node] = frozenset()
) -> set[_Node]:
    """These nodes, as far as they are in the graph, and all that gradients come from on their way to them. It goes no
    further than to nodes in `until`."""
    todo = [node for node in nodes if node in parents]
    reached = set(todo)
    while todo:
        node = todo.pop()
        if node not in until:
            new = [parent for parent in parents[node] if parent not in reached]
            reached.update(new)
            todo += new
    return reached
