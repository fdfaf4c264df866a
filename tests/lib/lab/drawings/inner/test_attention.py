"""Pictures of lab 04: the numbers in them, and the library's pieces that stand in for the reader's."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from threeloops.inner import interpreter
from threeloops.inner.costs import attention as cost
from threeloops.lab.drawings.inner import attention

interpreter.enable_without_gpu()


@dataclass
class Summary:
    m: torch.Tensor
    s: torch.Tensor
    a: torch.Tensor


def words(fig):
    return "\n".join(text.get_text() for text in fig.findobj(Text))


def traffic():
    """The MiB of naive attention, asked for and each byte once, and those of fused attention."""
    return [line.get_ydata().tolist() for line in attention.draw_traffic().axes[0].lines]


def test_the_traffic_of_each_byte_once_is_the_librarys_cost():
    _, naive, _, fused = traffic()
    assert set(naive) == {cost(1, 1, 4096, 4096, 128).bytes / 2**20}
    assert set(fused) == {cost(1, 1, 4096, 4096, 128, fused=True).bytes / 2**20}


def test_twice_the_block_halves_what_a_fused_kernel_asks_of_k_and_v():
    naive, _, fused, once = traffic()
    of_keys = [asked - once[0] / 2 for asked in fused]  # Q and the output are half of the least
    assert [first / second for first, second in zip(of_keys, of_keys[1:], strict=False)] == [2.0] * 5
    assert all(more > less for more, less in zip(naive, fused, strict=True))
    assert "fused, each byte once" in words(attention.draw_traffic())


def walk(step):
    """The scores so far and the weights that the drawing of a step shows."""
    top, bottom = attention.draw_walk(step).axes
    return top.lines[0].get_ydata(), np.array([bar.get_height() for bar in bottom.patches])


def test_the_walk_ends_with_the_softmax_of_all_keys():
    scores, weights = walk(4)
    assert len(scores) == len(weights) == 160
    assert np.allclose(weights / weights.sum(), torch.tensor(scores).softmax(0).numpy())


def test_the_walk_shrinks_earlier_weights_when_the_maximum_rises():
    before, after = walk(3)[1], walk(4)[1][:128]
    factors = after / before
    assert np.allclose(factors, factors[0]) and factors[0] < 0.5
    assert "before this tile" in words(attention.draw_walk(4))
    assert "before this tile" not in words(attention.draw_walk(2))


def test_a_step_beyond_the_last_tile_is_refused():
    with pytest.raises(ValueError, match="step = 5: expected 0 to 4"):
        attention.draw_walk(5)


def test_the_librarys_pieces_on_four_shards_agree_with_float64():
    q, k, v = attention.drifting(64, 512)
    shards = [attention.library_head(q, *pair, 32, 32) for pair in zip(k.chunk(4), v.chunk(4), strict=True)]
    total, *others = (Summary(lse, torch.ones_like(lse), out) for out, lse in shards)
    for other in others:
        total = attention.library_merge(total, other)
    out, lse = attention.library_finish(total)
    scores = q.double() @ k.double().T / 4
    assert torch.allclose(out.double(), scores.softmax(1) @ v.double(), atol=1e-5)
    assert torch.allclose(lse.double(), scores.logsumexp(1), atol=1e-5)
    shares = [(part - lse).exp() for _, part in shards]
    assert all(f"shard {number}" in words(attention.draw_shards(shares)) for number in range(4))
    assert int(shares[0].argmax()) < 16 < 48 < int(shares[3].argmax())


def test_shares_of_one_shard_alone_are_refused():
    with pytest.raises(ValueError, match="a row per shard"):
        attention.draw_shards([0.5, 0.5])


def test_the_opening_gives_no_size_away():
    assert "MiB: ?" in words(attention.draw_question())
