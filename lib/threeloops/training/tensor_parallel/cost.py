"""The collectives that tensor parallelism needs and the bytes that they send, in closed form and exact to the byte."""

from dataclasses import dataclass

from threeloops.models.gpt_config import GPTConfig

__all__ = ["Traffic", "block_traffic", "loss_traffic", "step_traffic"]


@dataclass(frozen=True)
class Traffic:
    """`collectives` that each rank takes part in, and the `bytes` that the ranks of the group send together: an n-th of
    them per rank of n (give or take an element per collective where n does not divide the tensor)."""

    collectives: int = 0
    bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.collectives + other.collectives, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(times * self.collectives, times * self.bytes)


def _all_reduces(count: int, size: int, ranks: int) -> Traffic:
    return Traffic(count, count * 2 * (ranks - 1) * size)


def _halves(count: int, size: int, ranks: int) -> Traffic:
    """All-gathers and reduce-scatters: each is half of an all-reduce."""
    return Traffic(count, count * (ranks - 1) * size)


def _boundaries(count: int, size: int, ranks: int, sequence_parallel: bool) -> Traffic:
    """Ends of cut regions, where tensors of `size` bytes are summed; with sequence parallelism each region also begins
    with a collective."""
    return _halves(2 * count, size, ranks) if sequence_parallel else _all_reduces(count, size, ranks)


def block_traffic(
    tokens: int, width: int, ranks: int, element_size: int = 4, *, sequence_parallel: bool = False
) -> tuple[Traffic, Traffic]:
    """Forward and backward of one block with activations (tokens, width): 2 · 2(n − 1) · tokens · width · bytes each.

    Two all-reduces each way, or two all-gathers and two reduce-scatters of the same bytes. Backward with sequence
    parallelism also sums the gradients of the two norms, of `width` elements each, in an all-reduce per norm. (Megatron
    gathers the input of each region again in backward to save memory: two more all-gathers per block. Here it is kept.)
    """
    ways = _boundaries(2, tokens * width * element_size, ranks, sequence_parallel)
    return ways, ways + _all_reduces(2 * sequence_parallel, width * element_size, ranks)


def loss_traffic(tokens: int, ranks: int, element_size: int = 4) -> Traffic:
    """Forward of the cross-entropy: a maximum and two sums per token; backward sends nothing. Gathering the logits
    would send (n − 1) · tokens · vocabulary elements."""
    return Traffic(2, 2 * (ranks - 1) * 3 * tokens * element_size)


def step_traffic(
    config: GPTConfig, tokens: int, ranks: int, element_size: int = 4, *, sequence_parallel: bool = False
) -> tuple[Traffic, Traffic]:
    """Forward and backward of a whole GPT on `tokens` tokens, all sequences of the batch together: its blocks, the end
    of the embedding, the beginning of the head, and the loss. Norms of queries and keys add an all-reduce each to the
    backward of a block, for the gradient of `head_dim` elements."""
    forward, backward = block_traffic(tokens, config.width, ranks, element_size, sequence_parallel=sequence_parallel)
    backward += _all_reduces(2 * config.qk_norm, config.head_dim * element_size, ranks)
    size = tokens * config.width * element_size
    if sequence_parallel:
        ends = _halves(2, size, ranks), _halves(2, size, ranks)
        ends = ends[0], ends[1] + _all_reduces(1, config.width * element_size, ranks)
    else:
        ends = _all_reduces(1, size, ranks), _all_reduces(1, size, ranks)
    loss = loss_traffic(tokens, ranks, max(element_size, 4))
    return forward * config.layers + ends[0] + loss, backward * config.layers + ends[1]
