"""The tensors that one GPT block keeps for its backward pass, and those that this pass allocates and frees, in order.

This follows autograd: a matrix product keeps its input (and the weight, which exists anyway), an elementwise product
keeps both factors, SiLU keeps its input, and attention keeps queries, keys, values, output and the logarithms of its
sums. Views of one storage count once (the values are a slice of the projection, so all of it stays), and so do tensors
that two operators keep (the residual stream).
"""

from collections.abc import Iterator
from typing import NamedTuple

from threeloops.inner.memory.sizes import TrainingStep

__all__ = ["Move", "Saved", "block_backward", "free", "norm_backward", "saved_by_layer", "saved_by_norm"]

Saved = dict[str, int]


class Move(NamedTuple):
    """Allocate `name` (`bytes` > 0), free it (0), or rename it (`becomes`)."""

    name: str
    bytes: int = 0
    becomes: str = ""


def free(*names: str) -> list[Move]:
    return [Move(name) for name in names]


def saved_by_norm(step: TrainingStep, name: str) -> Saved:
    """Return the tensors that RMSNorm keeps beyond its input, and its output, which the following product keeps."""
    row = step.tokens * step.model.width * step.wide
    saved = {f"{name} 1/rms": step.tokens * (step.wide if step.decomposed_norm else 4)}
    if step.decomposed_norm:
        if step.element < step.wide:  # computed in float32, on a copy of the input
            saved[f"{name} input in float32"] = row
        saved[f"{name} normalised"] = row
    return saved | {f"{name} output": step.stream}


def saved_by_layer(step: TrainingStep) -> Saved:
    """Return the bytes of each tensor that one layer keeps until its backward pass.

    "input" is among them or, in 16 bits on a CPU, a norm's float32 copy of it instead.
    """
    model = step.model
    element = step.element
    width, keys, _ = model.qkv_widths
    vector = step.tokens * element  # one number per token
    saved = ({"input": step.stream} if step.keeps_stream else {}) | saved_by_norm(step, "attention norm")
    if step.attention == "scores":  # keys and values are copied for every query head
        saved |= {"scaled q": vector * width, "scaled k, repeated": vector * width, "v, repeated": vector * width}
        saved["probabilities"] = step.batch * model.heads * step.sequence**2 * element
    else:
        saved["qkv"] = vector * sum(model.qkv_widths)
        if not step.fused:  # the course's kernel rotates as it reads; PyTorch's rotations make new tensors
            saved |= {"rotated q": vector * width, "rotated k": vector * keys}
        saved |= {"attention output": vector * width, "log-sum-exp": step.tokens * model.heads * step.wide}
    if step.heads_are_copied:
        saved["heads side by side"] = vector * width
    if step.keeps_stream:
        saved["stream between"] = step.stream
    saved |= saved_by_norm(step, "mlp norm")
    return saved | dict.fromkeys(("gate", "silu(gate)", "up", "product"), vector * model.mlp_width)


def block_backward(step: TrainingStep) -> Iterator[Move]:
    """Follow the backward pass of one block, from its "d stream" to the "d stream" of the layer below."""
    model = step.model
    vector = step.tokens * step.element
    width = model.width
    hidden = model.mlp_width
    queries = model.qkv_widths[0]

    def gradient(name: str, elements: int) -> Move:
        return Move(f"gradient of {name}", elements * step.element)

    yield from [gradient("mlp.down", width * hidden), Move("d product", vector * hidden), *free("product")]
    yield from [Move("d silu", vector * hidden), Move("d up", vector * hidden)]
    yield from [*free("d product", "up", "silu(gate)"), gradient("mlp.up", width * hidden)]
    yield from [Move("d norm, by up", vector * width), *free("d up")]
    yield from [Move("d gate", vector * hidden), *free("d silu", "gate"), gradient("mlp.gate", width * hidden)]
    yield from [Move("d norm, by gate", vector * width), *free("d gate", "mlp norm output")]
    yield from [Move("d norm", vector * width), *free("d norm, by up", "d norm, by gate")]
    yield from norm_backward(step, "mlp norm", "stream between")
    yield from [gradient("attention.output", queries * width), Move("d heads", vector * queries)]
    yield from free("heads side by side")
    yield from _attention_backward(step)
    yield gradient("attention.qkv", width * sum(model.qkv_widths))
    yield from [Move("d norm", vector * width), *free("d qkv", "attention norm output")]
    yield from norm_backward(step, "attention norm", "input")


def _attention_backward(step: TrainingStep) -> Iterator[Move]:
    """Go from "d heads" to "d qkv": attention, then the rotations of keys and queries, then their concatenation."""
    vector = step.tokens * step.element
    width, keys, values = step.model.qkv_widths
    if step.attention == "scores":
        scores = step.batch * step.model.heads * step.sequence**2 * step.element
        yield from [Move("d v", vector * values), Move("d probabilities", scores), *free("d heads")]
        yield from [Move("d scores", scores), *free("d probabilities", "probabilities")]
        yield from [Move("d q", vector * width), Move("d k", vector * keys), *free("d scores")]
    else:
        yield from [Move("d q", vector * width), Move("d k", vector * keys), Move("d v", vector * values)]
        yield from free("d heads", "attention output", "log-sum-exp")
    yield from free("rotated k", "rotated q", "qkv", "scaled q", "scaled k, repeated", "v, repeated")
    for name, size in (("k", keys), ("q", width)):  # four products of half the size, added in pairs, then joined
        products = [f"{name}, product {i}" for i in range(4)]
        yield from [Move(product, step.tokens * size * step.wide // 2) for product in products]
        yield from [*free(products[0], f"d {name}"), Move(f"d unrotated {name}", vector * size), *free(*products[1:])]
    joined = vector * sum(step.model.qkv_widths)
    yield from [Move("d heads joined", joined), *free("d unrotated q", "d unrotated k", "d v")]
    yield from [Move("d qkv", joined), *free("d heads joined")]


def norm_backward(step: TrainingStep, name: str, stream: str, *, residual: bool = True) -> Iterator[Move]:
    """Go from "d norm", the gradient of a norm's output, to "d stream", its input's. Frees the tensors that the norm
    kept.

    residual: another "d stream" bypasses the norm, and both are added up.
    """
    row = step.tokens * step.model.width * step.wide
    final = step.stream
    narrow = step.element < step.wide

    def added(size: int) -> list[Move]:
        if not residual:
            return []
        return [Move("sum", size), *free("d stream", "d input"), Move("sum", becomes="d input")]

    yield Move(f"gradient of {name}", step.model.width * step.element)
    if step.decomposed_norm:
        if narrow:
            yield from [Move("d wide", row), *free("d norm"), Move("d wide", becomes="d norm")]
        yield from [Move("by weight", row), Move("d normalised", row), *free("by weight", "d norm")]
        yield from [*free(f"{name} normalised"), Move("by 1/rms", row), Move("d input", row)]
        yield from free("by 1/rms", "d normalised")
        if not narrow:
            yield from added(row)
        terms = ["d mean", "2x", "scaled", "d square"]
        yield from [*free(f"{name} 1/rms"), *(Move(term, row) for term in terms)]
        yield from free(*terms[:3], f"{name} input in float32", *([] if narrow else [stream]))
        yield from [Move("d both", row), *free("d input", "d square"), Move("d both", becomes="d input")]
        if narrow:
            yield from [Move("d rounded", final), *free("d input"), Move("d rounded", becomes="d input"), *added(final)]
    else:
        yield from [Move("d input", final), *free("d norm", f"{name} 1/rms", stream), *added(final)]
    yield Move("d input", becomes="d stream")
