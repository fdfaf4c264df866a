"""A training step as the accountant predicts it: what is allocated and freed, in order, as a timeline.

The forward pass is modelled by the tensors it saves, since its temporaries are never the peak; the loss and the
backward pass are modelled operator by operator. The modelled step is not the first one: the optimizer's moments exist,
and the gradients were freed before the forward pass.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from threeloops.inner.memory.block import Move, block_backward, free, norm_backward, saved_by_layer, saved_by_norm
from threeloops.inner.memory.sizes import Model, TrainingStep
from threeloops.inner.memory.timeline import Storage, Timeline

__all__ = ["predicted"]

_BETWEEN_MODULES = ("d stream", "d norm", "d input")


class _Ledger:
    """Writes a timeline of tensors, each with a name and a module."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._open: dict[tuple[str, str], int] = {}

    def make(self, name: str, size: int, kind: str, module: str = "") -> None:
        self._open[module, name] = self.timeline.add(Storage(size, kind, name, module))

    def save(self, sizes: Mapping[str, int], module: str) -> None:
        """Make the tensors that a forward pass saves for the backward pass."""
        for name, size in sizes.items():
            self.make(name, size, "activation", module)

    def follow(self, moves: Iterable[Move], module: str) -> None:
        """Make, rename and free tensors. New tensors are temporary, except gradients of weights."""
        for name, size, becomes in moves:
            where = "" if name in _BETWEEN_MODULES else module
            if becomes:
                self._open["" if becomes in _BETWEEN_MODULES else module, becomes] = self._open.pop((where, name))
            elif size:
                self.make(name, size, "gradient" if name.startswith("gradient of ") else "temporary", where)
            elif (number := self._open.pop((where, name), None)) is not None:  # it may never have been saved
                self.timeline.end(number)


def predicted(step: TrainingStep) -> Timeline:
    """Return the timeline of live storage of one training step."""
    model = step.model
    ledger = _Ledger()
    for name, size, kind in (
        ("parameters", step.parameters, "parameter"),
        ("masters", step.master_bytes, "master"),
        ("states", step.states, "state"),
        ("rotary tables", step.tables, "buffer"),
        ("tokens and targets", step.inputs, "input"),
    ):
        if size:
            ledger.make(name, size, kind)
    ledger.timeline.mark("forward")
    segment = step.layers_per_segment
    for layer in range(model.layers):
        if segment is None:
            ledger.save(saved_by_layer(step), f"blocks.{layer}")
        elif layer % segment == 0:
            ledger.save({"input": step.stream}, f"blocks.{layer}")
    _head(ledger, step)
    for layer in reversed(range(model.layers)):
        if segment is not None and (layer + 1) % segment == 0:
            first = layer + 1 - segment
            ledger.timeline.mark(f"recompute {first}")
            for again in range(first, layer + 1):
                saved = saved_by_layer(step)
                if again == first:
                    saved.pop("input", None)  # which is still there
                ledger.save(saved, f"blocks.{again}")
        ledger.follow(block_backward(step), f"blocks.{layer}")
        ledger.follow(free("input"), f"blocks.{layer}")  # a segment's input, where no norm kept and freed it
    _embedding(ledger, step)
    _update(ledger, step)
    return ledger.timeline


def _head(ledger: _Ledger, step: TrainingStep) -> None:
    """Follow the final norm, logits and loss, and their backward pass, which make the widest tensors of the step."""
    model = step.model
    narrow = step.element < step.wide
    if step.keeps_stream:
        ledger.save({"output of the blocks": step.stream}, "norm")
    ledger.save(saved_by_norm(step, "norm"), "norm")
    gradients = [Move("gradient of head", model.vocabulary_size * model.width * step.element)]
    gradients += [Move("d norm", step.stream)]
    if step.fused:  # makes the gradients in the forward pass, from a part of the logits at a time
        ledger.follow(gradients, "head")
        ledger.timeline.mark("backward")
    else:
        short, wide = (step.tokens * model.vocabulary_size * size for size in (step.element, step.wide))
        ledger.save({"logits": short, **({"logits in float32": wide} if narrow else {}), "log-softmax": wide}, "head")
        ledger.follow(free("logits", "logits in float32"), "head")
        ledger.timeline.mark("backward")
        moves = [Move("d log-softmax", wide), Move("d logits", wide), *free("d log-softmax", "log-softmax")]
        moves += [Move("d logits, rounded", short), *free("d logits")] if narrow else []
        ledger.follow([*moves, *gradients, *free("d logits", "d logits, rounded")], "head")
    ledger.follow(free("norm output"), "norm")
    ledger.follow(norm_backward(step, "norm", "output of the blocks", residual=False), "norm")


def _embedding(ledger: _Ledger, step: TrainingStep) -> None:
    """Make a dense gradient of the whole table. If the head shares the table, the sum of both gradients is a third
    tensor."""
    table = step.model.vocabulary_size * step.model.width * step.element
    ledger.follow([Move("gradient of embedding", table), *free("d stream")], "embedding")
    if step.model.tied_embeddings:
        ledger.follow([Move("gradient of both", table)], "embedding")
        ledger.follow(free("gradient of head"), "head")
        ledger.follow(free("gradient of embedding"), "embedding")


def _update(ledger: _Ledger, step: TrainingStep) -> None:
    """Follow the largest moment of AdamW's update. SGD works in place.

    The update of a parameter makes a root and a quotient of its size, in a loop whose variable still holds the
    preceding parameter's quotient.
    """
    ledger.timeline.mark("update")
    if step.optimizer in ("adam", "adamw"):
        sizes = [0, *_parameter_sizes(step.model)]
        preceding, updated = max(pairwise(sizes), key=lambda pair: pair[0] + 2 * pair[1])
        element = 4 if step.masters else step.element
        temporaries = {"preceding quotient": preceding, "root": updated, "quotient": updated}
        ledger.follow((Move(name, size * element) for name, size in temporaries.items()), "")
        ledger.follow(free(*temporaries), "")


def _parameter_sizes(model: Model) -> list[int]:
    """Return the number of elements of each of the model's parameters, in the order in which an optimizer updates
    them."""
    width = model.width
    hidden = model.mlp_width
    attention = [width, width * sum(model.qkv_widths), model.qkv_widths[0] * width]
    mlp = [width, *[width * hidden] * 3]
    head = [] if model.tied_embeddings else [model.vocabulary_size * width]
    return [model.vocabulary_size * width, *(attention + mlp) * model.layers, width, *head]
