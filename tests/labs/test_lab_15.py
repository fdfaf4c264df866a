"""Lab 15: the numbers of its prose."""

import pytest
import torch
from threeloops.hardware import accelerator
from threeloops.lab.drawings.product.decoding import draw_decode_steps, draw_four_bits, draw_guess, draw_passes
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode import (
    BlockManager,
    accept,
    bytes_per_token,
    contiguous_waste,
    expected_tokens,
    paged_waste,
)
from threeloops.product.quantized import Scheme, pack, perplexity, quantize
from threeloops.product.trained import standard_library, trained

LLAMA = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
CONTEXT = 8192
CACHE = CONTEXT * bytes_per_token(LLAMA)
H100 = accelerator("H100 SXM")
WEIGHTS = 2 * 8.03e9


def test_the_model_of_the_worked_example():
    assert LLAMA.parameters_count() == pytest.approx(8.03e9, rel=1e-3)
    assert bytes_per_token(LLAMA) == 131_072
    assert (round(CACHE / 1e9, 2), round(WEIGHTS / 1e9, 2)) == (1.07, 16.06)
    assert (H100.memory_bandwidth, round(H100.rate("bf16") / 1e12, 1)) == (3.35e12, 989.4)
    assert round(H100.memory_bytes / 1e9, 1) == 85.9


@pytest.mark.parametrize(("batch", "gigabytes", "milliseconds"), [(1, 17.13, 5.1), (47, 66.5, 19.9), (65, 85.9, 25.6)])
def test_the_steps_of_the_worked_example(batch, gigabytes, milliseconds):
    read = WEIGHTS + batch * CACHE
    assert read / 1e9 == pytest.approx(gigabytes, abs=0.06)
    assert 1e3 * read / H100.memory_bandwidth == pytest.approx(milliseconds, abs=0.05)


def test_the_limits_of_the_worked_example():
    assert int((0.020 * H100.memory_bandwidth - WEIGHTS) // CACHE) == 47
    assert int((H100.memory_bytes - WEIGHTS) // CACHE) == 65


def test_arithmetic_is_idle_for_more_than_99_percent_of_a_step():
    flops = 2 * 8.03e9 + 4 * LLAMA.layers * LLAMA.width * CONTEXT
    seconds = flops / H100.rate("bf16")
    assert 1e3 * seconds == pytest.approx(0.02, abs=0.005)
    assert seconds < 0.01 * (WEIGHTS + CACHE) / H100.memory_bandwidth


def test_four_bit_weights_on_the_same_gpu():
    read = Scheme(4, 128).nbytes(1, 128) / 128 * 8.03e9 + CACHE
    assert 1e3 * read / H100.memory_bandwidth == pytest.approx(1.6, abs=0.05)


def test_the_arithmetic_of_a_chunk():
    new, total, width, heads, kv_heads, head_dim = 2, 5, 16, 4, 2, 8
    assert 2 * new * width * (heads + 2 * kv_heads) * head_dim == 4096
    assert 4 * new * total * heads * head_dim == 1280


def test_the_blocks_of_the_worked_example():
    manager, a = BlockManager(4, 4), []
    manager.grow(a, 6, written=0)
    b = manager.fork(a)
    assert manager.grow(b, 7, written=6) == [(1, 2)] and (a, b) == ([0, 1], [0, 2])
    assert manager.grow(a, 7, written=6) == []
    manager.release(a)
    assert manager.free == 2


def test_the_waste_of_answers():
    answers = torch.randint(50, 1501, (10_000,), generator=torch.Generator().manual_seed(0)).tolist()
    assert round(100 * contiguous_waste(answers, 2048)) == 62
    assert paged_waste(answers, 16) < 0.015


def test_bits_per_weight_and_the_bytes_of_the_worked_example():
    for group, bits in ((128, 4.125), (32, 4.5)):
        assert 8 * Scheme(4, group).nbytes(1, 4096) / 4096 == bits
    assert pack(torch.tensor([[15, 6, 9, 9]], dtype=torch.uint8), 4).tolist() == [[111, 153]]


def test_what_four_bits_cost_the_small_model_and_how_much_of_it_gptq_leaves():
    model, (text, unseen) = trained("tiny"), (part.long() for part in standard_library())
    seen = torch.stack([text[start : start + 128] for start in range(0, len(text) - 128, len(text) // 32)])

    def rise(method, bits):
        few = quantize(model, method, Scheme(bits, 32), calibration=seen if method == "gptq" else None, head=True)
        return perplexity(few, unseen[:32_768], window=128).value / plain - 1

    plain = perplexity(model, unseen[:32_768], window=128).value
    assert abs(rise("rtn", 8)) < 0.001
    rounded = rise("rtn", 4)
    assert 0.008 < rounded < 0.016  # the text is this Python's standard library: 0.0094 on 3.14
    assert 0.4 < rise("gptq", 4) / rounded < 0.65


def test_the_guess_of_the_worked_example():
    p, q = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([[0.5, 0.3, 0.2]])
    model = torch.stack((p, p))
    assert accept([0], q, model, torch.tensor([0.39]))[0] == 1
    kept, excess = accept([0], q, model, torch.tensor([0.41]))
    assert kept == 0
    torch.testing.assert_close(excess / excess.sum(), torch.tensor([0, 2 / 3, 1 / 3]))
    assert pytest.approx(float(p[1])) == 0.3 + 0.5 * 0.6 * 2 / 3
    assert round(expected_tokens(0.7, 4), 2) == 2.77


def test_the_step_of_the_reflection():
    cached = 4 * 30_000 * bytes_per_token(LLAMA)
    assert cached / 1e9 == pytest.approx(15.7, abs=0.05)
    assert (WEIGHTS + cached) / 1e9 == pytest.approx(31.8, abs=0.05)
    assert (WEIGHTS / 16 * 4.125 + cached / 2) / 1e9 == pytest.approx(12, abs=0.1)


def test_the_pictures_say_what_the_worked_examples_say():
    plot = draw_decode_steps(WEIGHTS, CACHE, 2 * 8.03e9, (3.35e12, 989.4e12, 85.9e9), "H100")
    assert [label.get_text() for label in plot.axes[0].get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "65"]
    assert plot.axes[0].texts[-1].get_text() == "2.5", "65 tokens in 25.6 ms"
    title = draw_guess([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], 0).axes[0].get_title("left")
    assert "probability 0.40, and any guess with 0.70" in title
    names = [
        label.get_text() for label in draw_four_bits({"calm": [0.7, 0.1], "loud": [7.0, 0.1]}).axes[0].get_yticklabels()
    ]
    assert names == ["calm\nerror 0.000", "loud\nerror 0.100"]
    texts = [text.get_text() for text in draw_passes([("the ", 2, "n"), ("abcd", 0, "x")]).axes[0].texts]
    assert texts == ["t", "h", "e", "␣", "n", "3 tokens", "a", "b", "c", "d", "x", "1 token"]
