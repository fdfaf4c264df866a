"""Sampling against distributions written down once more in float64, and noise that knows only its request."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.decode.sampling import choose, draw, probabilities, uniforms
from threeloops.product.decode.sampling.draws import _mix, _mix_one
from threeloops.product.request import Sampling

LOGITS = [1.0, 3.0, -2.0, 3.0, 0.5, 2.0, -40.0]


def oracle(logits, temperature, top_k, top_p):
    """Chances of one row in Python's own numbers."""
    scaled = [value / temperature for value in logits]
    if 0 < top_k < len(scaled):
        least = sorted(scaled)[-top_k]
        scaled = [value if value >= least else -math.inf for value in scaled]
    weights = [math.exp(value - max(scaled)) for value in scaled]
    chances = [weight / math.fsum(weights) for weight in weights]
    kept, so_far = set(), 0.0
    for place in sorted(range(len(chances)), key=lambda place: -chances[place]):
        if so_far >= top_p:
            break
        kept.add(place)
        so_far += chances[place]
    total = math.fsum(chances[place] for place in kept)
    return [chances[place] / total if place in kept else 0.0 for place in range(len(chances))]


def is_drawn_from(counts, chances):
    """Pearson's chi-square: within five deviations of its mean, and nothing that has no chance."""
    total = sum(counts)
    possible = [place for place, chance in enumerate(chances) if chance > 0]
    assert sum(counts[place] for place in possible) == total, "something without a chance was drawn"
    cells = [place for place in possible if chances[place] * total >= 5]
    statistic = sum((counts[p] - total * chances[p]) ** 2 / (total * chances[p]) for p in cells)
    freedom = len(cells) - 1
    return statistic <= freedom + 5 * math.sqrt(2 * max(1, freedom))


@given(
    st.lists(st.floats(-8, 8).map(lambda value: round(value, 1)), min_size=1, max_size=12),
    st.floats(0.05, 5),
    st.integers(0, 13),
    st.floats(0.01, 1),
)
def test_probabilities_are_those_of_the_oracle(logits, temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    found = probabilities(torch.tensor([logits], dtype=torch.float64), [sampling])[0].tolist()
    expected = oracle(logits, temperature, top_k, top_p)
    near_a_border = {place for place in range(len(logits)) if (found[place] > 0) != (expected[place] > 0)}
    if not near_a_border:  # where the sum of chances meets top_p but for rounding, either may be right
        assert found == pytest.approx(expected, abs=1e-12)
    else:
        chances = oracle(logits, temperature, top_k, 1.0)
        ordered = sorted(chances, reverse=True)
        assert any(abs(sum(ordered[:n]) - top_p) < 1e-9 for n in range(len(ordered)))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5, top_k=3),
        Sampling(temperature=2.0, top_p=0.8),
        Sampling(temperature=1.3, top_k=5, top_p=0.9),
        Sampling(temperature=1.0, top_k=1),
    ],
    ids=str,
)
def test_tokens_are_drawn_from_the_chances(sampling):
    count = 6000
    logits = torch.tensor([LOGITS]).expand(count, -1)
    tokens = choose(logits, [sampling] * count, range(count))
    counts = torch.bincount(tokens, minlength=len(LOGITS)).tolist()
    assert is_drawn_from(counts, oracle(LOGITS, sampling.temperature, sampling.top_k, sampling.top_p))


def test_a_wrong_distribution_is_noticed():
    """What the test above can see: draws at another temperature fail it."""
    tokens = choose(torch.tensor([LOGITS]).expand(6000, -1), [Sampling(temperature=1.3)] * 6000, range(6000))
    assert not is_drawn_from(torch.bincount(tokens, minlength=len(LOGITS)).tolist(), oracle(LOGITS, 1.0, 0, 1.0))


@pytest.mark.parametrize("varied", ["seed", "position", "stream", "seed for position"])
def test_draws_are_independent_of_each_other(varied):
    """Pairs of draws whose seeds, positions or streams are neighbours fall into all cells alike."""
    count, sides = 5000, 5
    chances = torch.ones(count, sides)
    numbers = list(range(count))
    first = draw(chances, numbers, [3] * count)
    if varied == "seed":
        second = draw(chances, [number + 1 for number in numbers], [3] * count)
    elif varied == "seed for position":
        second = draw(chances, [abs(number - 1) for number in numbers], [4] * count)
    elif varied == "position":
        second = draw(chances, numbers, [4] * count)
    else:
        second = draw(chances, numbers, [3] * count, stream=1)
    cells = torch.bincount(first * sides + second, minlength=sides**2).tolist()
    assert is_drawn_from(cells, [1 / sides**2] * sides**2)


def test_uniform_numbers_fill_the_interval():
    found = uniforms(range(4000), [7] * 4000, stream=2, device=torch.device("cpu"))
    assert found.dtype == torch.float64 and (found > 0).all() and (found < 1).all()
    assert is_drawn_from(torch.histc(found.float(), 20, 0, 1).tolist(), [0.05] * 20)
    again = draw(torch.ones(4000, 2), range(4000), [7] * 4000, stream=2)
    assert is_drawn_from(torch.bincount(again, minlength=2).tolist(), [0.5, 0.5])


def test_the_mixing_function_is_that_of_splitmix64():
    """The first numbers of the reference implementation for the seed 1234567."""
    golden = 0x9E3779B97F4A7C15
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [_mix_one(1234567 + i * golden) for i in range(4)] == expected
    signed = torch.tensor([1234567 + (i + 1) * (golden - 2**64) & 2**64 - 1 for i in range(4)], dtype=torch.uint64)
    assert [number % 2**64 for number in _mix(signed.view(torch.int64)).tolist()] == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_a_token_depends_on_nothing_but_its_own_row(kinds, data):
    settings = [
        Sampling(),
        Sampling(temperature=0.7, seed=5),
        Sampling(temperature=0.7, seed=6),
        Sampling(temperature=1.0, top_k=4, seed=5),
        Sampling(temperature=1.5, top_p=0.6, seed=2**70 + 1),
        Sampling(temperature=1.5, top_k=3, top_p=0.6, seed=5),
    ]
    samplings = [settings[kind] for kind in kinds]
    positions = [data.draw(st.integers(0, 10**6)) for _ in kinds]
    logits = torch.randn(len(kinds), 17, generator=torch.Generator().manual_seed(len(kinds)))
    together = choose(logits, samplings, positions).tolist()
    alone = [
        choose(logits[row : row + 1], [samplings[row]], [positions[row]]).item() for row in reversed(range(len(kinds)))
    ]
    assert together == alone[::-1]


def test_temperature_zero_takes_the_first_of_the_likeliest():
    logits = torch.tensor([LOGITS, LOGITS[::-1]])
    assert choose(logits, [Sampling(), Sampling()], [0, 0]).tolist() == [1, 3]
    chances = probabilities(logits, [Sampling()] * 2)
    assert chances.sum(1).tolist() == [1, 1] and chances[0, 1] == 1 and chances[1, 3] == 1


def test_all_of_equal_logits_at_the_border_of_top_k_are_kept():
    chances = probabilities(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), [Sampling(temperature=1.0, top_k=2)])
    assert chances[0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize(("top_p", "kept"), [(1e-12, 1), (0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (1.0, 4)])
def test_the_token_that_crosses_top_p_is_kept(top_p, kept):
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log2().double() * math.log(2)
    chances = probabilities(logits, [Sampling(temperature=1.0, top_p=top_p)])[0]
    assert (chances > 0).sum() == kept and chances.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("top_p", [1e-10, 1e-45, 5e-46, 5e-324])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_top_p_near_zero_gives_the_likeliest_token(top_p, dtype):
    """Also one that float32 rounds to 0, so that the sum of no chances reaches it."""
    sampling = Sampling(temperature=1.0, top_p=top_p)
    assert probabilities(torch.tensor([[1.0, 3.0, 2.0]], dtype=dtype), [sampling])[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-20, 1e-6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_tiny_temperature_is_greedy(temperature, dtype):
    logits = torch.tensor([[-5.0, 2.0, 1.75, 0.0]], dtype=dtype)
    chances = probabilities(logits, [Sampling(temperature=temperature)])
    assert chances[0].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("scale", [1e4, 1e38])
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.1), Sampling(temperature=1e9, top_k=2, top_p=0.9)], ids=str
)
def test_huge_logits_give_chances(scale, sampling):
    chances = probabilities(torch.tensor([[-3.0, 3.0, 1.0, 3.0]]) * scale, [sampling])
    assert chances.isfinite().all() and chances[0, 1] == chances[0, 3] == 0.5


def test_logits_of_minus_infinity_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0]]).expand(200, -1)
    tokens = choose(logits, [Sampling(temperature=5.0)] * 200, range(200))
    assert set(tokens.tolist()) == {1, 3}


def test_sixteen_bits_are_widened_first():
    logits = torch.tensor([[1.0, 1.0078125, 0.9]], dtype=torch.bfloat16)
    (chances,) = probabilities(logits, [Sampling(temperature=1.0)])
    assert chances.dtype == torch.float32
    assert chances.tolist() == pytest.approx(oracle(logits[0].tolist(), 1.0, 0, 1.0), rel=1e-6)
