"""A whole training step as the accountant predicts it: what is allocated and freed, in order, as a timeline.

Deterministic arithmetic on the sizes alone; nothing runs. The forward pass is told by what it keeps, since its passing
temporaries are never the peak; the loss and the backward pass are told operator by operator. The state is that of any
step but the first: the optimiser's moments exist, the gradients were freed before the forward pass.
"""

from collections.abc import Iterable
from itertools import pairwise

from threeloops.inner.memory.block import (
    Move,
    block_backward,
    keeps_stream,
    norm_backward,
    saved_by_block,
    saved_by_norm,
)
from threeloops.inner.memory.sizes import Model, Step
from threeloops.inner.memory.timeline import Storage, Timeline


class Ledger:
    """Writes a timeline: tensors by name, each belonging to a module."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._open: dict[tuple[str, str], int] = {}

    def make(self, name: str, size: int, kind: str, module: str = "") -> None:
        number = len(self.timeline.storages)
        self.timeline.storages.append(Storage(size, kind, name, module))
        self.timeline.grow(number, size)
        self._open[module, name] = number

    def end(self, name: str, module: str = "") -> None:
        number = self._open.pop((module, name), None)
        if number is not None:  # not every recipe keeps every tensor
            self.timeline.grow(number, -self.timeline.storages[number].bytes)

    def follow(self, moves: Iterable[Move], module: str) -> None:
        """Play a backward pass: what it makes is temporary, except the gradients of weights."""
        for name, size, becomes in moves:
            where = "" if name in ("d stream", "d norm", "d input") else module
            if becomes:
                self._open["" if becomes in ("d stream", "d norm", "d input") else module, becomes] = self._open.pop(
                    (where, name)
                )
            elif size:
                self.make(name, size, "gradient" if name.startswith("gradient of ") else "temporary", where)
            else:
                self.end(name, where)


def predicted(step: Step) -> Timeline:
    """The timeline of live storage of one training step."""
    model, ledger = step.model, Ledger()
    stream = step.tokens * model.width * step.element
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
            if keeps_stream(step):
                ledger.make("input", stream, "activation", f"blocks.{layer}")
            _keep(ledger, step, layer)
        elif layer % segment == 0:
            ledger.make("input", stream, "activation", f"blocks.{layer}")
    _head(ledger, step)
    for layer in reversed(range(model.layers)):
        if segment is not None and (layer + 1) % segment == 0:
            _recompute(ledger, step, layer + 1 - segment, layer + 1)
        ledger.follow(block_backward(step), f"blocks.{layer}")
        if segment is not None and layer % segment == 0 and not keeps_stream(step):
            ledger.end("input", f"blocks.{layer}")
    _embedding(ledger, step)
    _update(ledger, step)
    return ledger.timeline


def _keep(ledger: Ledger, step: Step, layer: int) -> None:
    for name, size in saved_by_block(step).items():
        ledger.make(name, size, "activation", f"blocks.{layer}")


def _recompute(ledger: Ledger, step: Step, first: int, end: int) -> None:
    """The forward pass of a segment once more, from its input, which was kept."""
    ledger.timeline.mark(f"recompute {first}")
    for layer in range(first, end):
        if layer > first and keeps_stream(step):
            ledger.make("input", step.tokens * step.model.width * step.element, "activation", f"blocks.{layer}")
        _keep(ledger, step, layer)


def _head(ledger: Ledger, step: Step) -> None:
    """Final norm, logits and loss, and their backward pass: the widest tensors of the step."""
    model, vector = step.model, step.tokens * step.element
    if keeps_stream(step):
        ledger.make("output of the blocks", vector * model.width, "activation", "norm")
    for name, size in saved_by_norm(step, "norm").items():
        ledger.make(name, size, "activation", "norm")
    if model.kernels == "fused":  # the gradients of hidden and weight are made in the forward pass, a part of the
        ledger.make("gradient of head", model.vocabulary_size * model.width * step.element, "gradient", "head")
        ledger.make("d norm", vector * model.width, "temporary")  # logits at a time
        ledger.timeline.mark("backward")
    else:
        logits = step.tokens * model.vocabulary_size
        ledger.make("logits", logits * step.element, "activation", "head")
        if step.element < step.wide:
            ledger.make("logits in float32", logits * step.wide, "activation", "head")
        ledger.make("log-softmax", logits * step.wide, "activation", "head")
        ledger.end("logits", "head")
        ledger.end("logits in float32", "head")
        ledger.timeline.mark("backward")
        ledger.make("d log-softmax", logits * step.wide, "temporary", "head")
        ledger.make("d logits", logits * step.wide, "temporary", "head")
        ledger.end("d log-softmax", "head")
        ledger.end("log-softmax", "head")
        if step.element < step.wide:
            ledger.make("d logits, rounded", logits * step.element, "temporary", "head")
            ledger.end("d logits", "head")
        ledger.make("gradient of head", model.vocabulary_size * model.width * step.element, "gradient", "head")
        ledger.make("d norm", vector * model.width, "temporary")
        ledger.end("d logits", "head")
        ledger.end("d logits, rounded", "head")
    ledger.end("norm output", "norm")
    ledger.follow(norm_backward(step, "norm", "output of the blocks", residual=False), "norm")


def _embedding(ledger: Ledger, step: Step) -> None:
    """A dense gradient of the whole table; where the head shares it, the sum of both is a third."""
    table = step.model.vocabulary_size * step.model.width * step.element
    ledger.make("gradient of embedding", table, "gradient", "embedding")
    ledger.end("d stream")
    if step.model.tied_embeddings:
        ledger.make("gradient of both", table, "gradient", "embedding")
        ledger.end("gradient of head", "head")
        ledger.end("gradient of embedding", "embedding")


def _update(ledger: Ledger, step: Step) -> None:
    """AdamW's update of a parameter makes a root and a quotient of its size, in a loop whose variable still holds the
    preceding parameter's quotient. The largest of these moments is told. SGD works in place.
    """
    ledger.timeline.mark("update")
    if step.optimizer in ("adam", "adamw"):
        sizes = [0, *parameter_sizes(step.model)]
        preceding, updated = max(pairwise(sizes), key=lambda pair: pair[0] + 2 * pair[1])
        element = 4 if step.masters else step.element
        temporaries = {"preceding quotient": preceding, "root": updated, "quotient": updated}
        for name, size in temporaries.items():
            if size:
                ledger.make(name, size * element, "temporary")
        for name in temporaries:
            ledger.end(name)


def parameter_sizes(model: Model) -> list[int]:
    """Numbers in each of the model's parameters, in the order in which an optimiser updates them."""
    width, hidden = model.width, model.mlp_width
    attention, mlp = [width, width * sum(model.qkv_widths), width * width], [width, *[width * hidden] * 3]
    head = [] if model.tied_embeddings else [model.vocabulary_size * width]
    return [model.vocabulary_size * width, *(attention + mlp) * model.layers, width, *head]
