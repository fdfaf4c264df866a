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


def test_the_traffic_of_each_byte_once_is_the_librarys_cost():
    for once, fused in ((attention.NAIVE_ONCE, False), (attention.FUSED_ONCE, True)):
        assert once == cost(1, 1, 4096, 4096, 128, fused=fused).bytes / 2**20


def test_twice_the_block_halves_what_a_fused_kernel_asks_of_k_and_v():
    of_keys = [asked - attention.FUSED_ONCE / 2 for asked in attention.FUSED]  # Q and the output are half of the least
    assert [first / second for first, second in zip(of_keys, of_keys[1:], strict=False)] == [2.0] * 5
    assert all(naive > fused for naive, fused in zip(attention.NAIVE, attention.FUSED, strict=True))
    assert "fused, each byte once" in words(attention.draw_traffic())


def test_the_walk_ends_with_the_softmax_of_all_keys():
    scores, weights, _, high = attention.walk(4)
    expected = torch.tensor(scores).softmax(0).numpy()
    assert np.allclose(weights / weights.sum(), expected) and high == scores.max()


def test_the_walk_shrinks_earlier_weights_when_the_maximum_rises():
    _, weights, old, _ = attention.walk(4)
    factors = weights[:128] / old[:128]
    assert np.allclose(factors, factors[0]) and factors[0] < 0.5
    assert "before this tile" in words(attention.draw_walk(4))
    assert "before this tile" not in words(attention.draw_walk(2))


def test_a_step_beyond_the_last_tile_is_refused():
    with pytest.raises(ValueError, match="step = 5: expected 0 to 4"):
        attention.walk(5)


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


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="expected 1 for each query"):
        attention.draw_shards([[0.5, 0.5], [0.5, 0.6]])


def test_the_opening_gives_no_size_away():
    assert "MiB: ?" in words(attention.draw_question())
