"""The course's transformer against an oracle in float64, written from the papers with complex numbers and loops."""

import copy
import dataclasses
import math
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from threeloops.hardware import device
from threeloops.models.gpt import GPT, GPTConfig, RotaryPositions
from threeloops.models.gpt_operations import rotate
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

CONFIGS = {
    "tiny": GPTConfig.tiny(),
    "untied, all heads their own": GPTConfig.tiny(tied_embeddings=False, kv_heads=4),
    "one key for all, odd sizes": GPTConfig.tiny(kv_heads=1, layers=3, mlp_width=77, vocabulary_size=101),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def model_of(config, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    model = GPT(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Larger than a fresh model's, so that attention has something to choose from; norms that are not all one.
            weight.normal_(1.0 if "norm" in name else 0.0, 0.15)
    return model.to(dtype)


def tokens_of(config, batch=2, length=33, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocabulary_size, (batch, length), generator=generator)


def oracle(model, tokens):
    """Logits of one sequence in float64: one query after the other, positions turned as complex numbers."""
    config, weights = model.config, {name: value.double() for name, value in model.state_dict().items()}

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + config.norm_epsilon).sqrt() * weights[f"{name}.weight"]

    def turned(x, position):
        half = config.head_dim // 2
        frequencies = torch.tensor([config.rope_base ** (-2 * i / config.head_dim) for i in range(half)]).double()
        pairs = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * position * frequencies)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    x = weights["embedding.weight"][tokens]
    for layer in range(config.layers):
        y = norm(x, f"blocks.{layer}.attention_norm") @ weights[f"blocks.{layer}.attention.qkv.weight"].T
        q, k, v = y.split(config.qkv_widths, dim=-1)
        heads = torch.empty(len(tokens), config.heads, config.head_dim, dtype=torch.float64)
        for t in range(len(tokens)):
            for head in range(config.heads):
                own = slice(head * config.head_dim, (head + 1) * config.head_dim)
                shared = head // (config.heads // config.kv_heads)
                theirs = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
                query = turned(q[t, own], t)
                scores = torch.stack([query @ turned(k[s, theirs], s) for s in range(t + 1)]) / math.sqrt(
                    config.head_dim
                )
                heads[t, head] = scores.softmax(0) @ v[: t + 1, theirs]
        x = x + heads.flatten(1) @ weights[f"blocks.{layer}.attention.output.weight"].T
        y = norm(x, f"blocks.{layer}.mlp_norm")
        gate, up, down = (weights[f"blocks.{layer}.mlp.{name}.weight"] for name in ("gate", "up", "down"))
        g = y @ gate.T
        x = x + (g / (1 + (-g).exp()) * (y @ up.T)) @ down.T
    return norm(x, "norm") @ weights["head.weight"].T


@each_config
@pytest.mark.parametrize("length", [1, 2, 17])
def test_logits_are_those_of_the_oracle(config, length):
    model, tokens = model_of(config, dtype=torch.float64), tokens_of(config, length=length)
    expected = torch.stack([oracle(model, row) for row in tokens])
    # The table of cosines is kept in float32, so that far the two differ.
    torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_mean_surprise_in_nats_over_targets_that_count():
    config = CONFIGS["tiny"]
    model, tokens = model_of(config, dtype=torch.float64), tokens_of(config)
    targets = tokens_of(config, seed=2)
    targets[0, 5:] = -100
    probabilities = model(tokens).softmax(-1).tolist()
    surprise = [
        -math.log(probabilities[b][t][targets[b, t]])
        for b in range(2) for t in range(33) if targets[b, t] != -100
    ]  # fmt: skip
    assert model(tokens, targets).item() == pytest.approx(sum(surprise) / len(surprise), rel=1e-12)


@each_config
def test_a_fresh_model_knows_nothing(config):
    torch.manual_seed(0)
    model, tokens = GPT(config), tokens_of(config, batch=4, length=64)
    loss = model(tokens, tokens_of(config, batch=4, length=64, seed=2)).item()
    assert loss == pytest.approx(math.log(config.vocabulary_size), abs=0.1)


def test_the_residual_stream_begins_at_one_size_at_any_depth():
    sizes = {}
    for layers in (2, 24):
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(layers=layers))
        seen = []
        model.norm.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0]))
        model(tokens_of(model.config))
        sizes[layers] = seen[0].square().mean().sqrt().item()
    assert sizes[24] == pytest.approx(sizes[2], rel=0.15)


@each_config
@pytest.mark.parametrize("changed", [0, 1, 16, 31, 32])
def test_a_token_changes_nothing_before_it_and_something_from_there_on(config, changed):
    model, tokens = model_of(config), tokens_of(config)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % config.vocabulary_size
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert ((before - after)[:, changed:].abs().amax(dim=(0, 2)) > 1e-4).all(), "every later token sees the change"


def test_sequences_of_a_batch_do_not_see_each_other():
    model, tokens = model_of(CONFIGS["tiny"]), tokens_of(CONFIGS["tiny"], batch=3)
    together = model(tokens)
    torch.testing.assert_close(together, torch.cat([model(row[None]) for row in tokens]), rtol=1e-4, atol=1e-5)


def test_shared_key_and_value_heads_are_repeated_ones():
    grouped = model_of(GPTConfig.tiny(kv_heads=2))
    full = GPT(GPTConfig.tiny(kv_heads=4))
    state = grouped.state_dict()
    for name in [name for name in state if "qkv" in name]:
        q, k, v = state[name].split(grouped.config.qkv_widths)
        dim = grouped.config.head_dim
        repeated = [part.unflatten(0, (2, dim)).repeat_interleave(2, 0).flatten(0, 1) for part in (k, v)]
        state[name] = torch.cat([q, *repeated])
    full.load_state_dict(state)
    tokens = tokens_of(full.config)
    torch.testing.assert_close(grouped(tokens), full(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head_dim", [2, 16, 64])
def test_a_rotated_product_depends_on_distance_alone_and_keeps_lengths(head_dim):
    rotation = RotaryPositions(head_dim, 200, base=10_000.0)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, head_dim, dtype=torch.float64)
    turned_q, turned_k = (rotate(x.expand(1, 1, 200, head_dim), rotation(0, 200))[0, 0] for x in (q, k))
    products = turned_q @ turned_k.T
    for distance in (-150, -1, 0, 1, 7, 150):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert torch.equal(turned_q[0], q[0, 0, 0]), "position 0 turns nothing"
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(200), rtol=1e-6, atol=0)
    assert not torch.allclose(products[0, 0], products[0, 1])


def test_positions_can_begin_anywhere_for_all_sequences_or_for_each():
    rotation = RotaryPositions(16, 100, base=10_000.0)
    everything = rotation(0, 100)
    for whole, part in zip(everything, rotation(7, 5), strict=True):
        assert torch.equal(part, whole[7:12])
    for name, sign, whole, part in zip(
        ("cosines", "sines"), (1, -1), everything, rotation(torch.tensor([7, 95]), 5), strict=True
    ):
        own = torch.stack([whole[7:12], whole[95:100]])[:, None]
        assert torch.equal(part, torch.cat([sign * own, own], -1)), f"{name} for both halves of a head"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [2, 16, 64])
def test_a_sequence_with_a_position_of_its_own_is_rotated_as_it_would_be_alone(head_dim, dtype):
    rotation = RotaryPositions(head_dim, 100, base=10_000.0)
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, head_dim).to(dtype).transpose(1, 2)
    together = rotate(x, rotation(torch.tensor([7, 95]), 5))
    alone = torch.cat([rotate(x[:1], rotation(7, 5)), rotate(x[1:], rotation(95, 5))])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    assert together.dtype == dtype and together.is_contiguous()


def test_positions_stay_exact_in_a_model_of_bfloat16_and_survive_the_meta_device():
    expected = RotaryPositions(16, 128, 10_000.0).cosines
    assert torch.equal(GPT(GPTConfig.tiny()).bfloat16().rotation.cosines, expected)
    with torch.device("meta"):
        model = GPT(GPTConfig.tiny())
    assert model.rotation.cosines.is_meta
    model = model.to_empty(device="cpu")
    model.initialise()
    assert torch.equal(model.rotation.cosines, expected)
    assert model(tokens_of(model.config)).isfinite().all()


class GrowingCache:
    """The simplest cache: it keeps everything that it is given."""

    def __init__(self):
        self.kept = None

    def attend(self, q, k, v, attention):
        new = (k, v)
        self.kept = new if self.kept is None else tuple(torch.cat(pair, 2) for pair in zip(self.kept, new, strict=True))
        return attention(q, *self.kept)


@each_config
@pytest.mark.parametrize("steps", [[33], [1] * 33, [10, 1, 1, 20, 1]], ids=["at once", "one by one", "in chunks"])
def test_decoding_with_a_cache_is_the_whole_pass(config, steps):
    model, tokens = model_of(config), tokens_of(config)
    caches, start, found = [GrowingCache() for _ in model.blocks], 0, []
    for step in steps:
        found.append(model(tokens[:, start : start + step], start=start, caches=caches))
        start += step
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=1e-4, atol=1e-5)


def test_the_attention_slot_takes_another_function():
    model, tokens = model_of(CONFIGS["tiny"]), tokens_of(CONFIGS["tiny"])
    shapes = []

    def blind(q, k, v):
        shapes.append((tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        return torch.zeros_like(q)

    for block in model.blocks:
        block.attention.attend = blind
    model(tokens)
    assert shapes == [((2, 4, 33, 16), (2, 2, 33, 16), (2, 2, 33, 16))] * 2


@each_config
def test_parameters_are_counted_by_the_formula(config):
    assert sum(weight.numel() for weight in GPT(config).parameters()) == config.parameters_count()


def test_the_small_model_has_124_million_parameters():
    with torch.device("meta"):
        model = GPT(GPTConfig.small())
    assert sum(weight.numel() for weight in model.parameters()) == GPTConfig.small().parameters_count() == 123_587_328


@contextmanager
def counted_flops():
    """torch counts every pair of query and key. It does not know the CPU's fused attention, so that is taken apart."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


@each_config
@pytest.mark.parametrize("length", [1, 65])
def test_flops_are_what_torch_counts(config, length):
    model, tokens = GPT(config), tokens_of(config, batch=3, length=length)
    with counted_flops() as counter:
        model(tokens)
    assert counter.get_total_flops() == 3 * length * config.flops_per_token(length, causal=False)
    unseen = config.layers * config.heads * length * (length - 1) // 2
    counted = length * config.flops_per_token(length)
    assert counted == length * config.flops_per_token(length, causal=False) - 4 * config.head_dim * unseen


def test_a_training_step_costs_three_forward_passes():
    config = GPTConfig.tiny(layers=4)
    model, tokens = GPT(config), tokens_of(config, batch=1, length=8)
    with counted_flops() as counter:
        model(tokens, tokens).backward()
    assert counter.get_total_flops() == 3 * 8 * config.flops_per_token(8, causal=False)


def test_one_small_batch_is_learnt_by_heart():
    torch.manual_seed(0)
    config = GPTConfig.tiny()
    model, tokens = GPT(config), tokens_of(config, batch=4, length=17)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1, "random tokens can only be known by heart"


@each_config
def test_every_parameter_learns(config):
    model, tokens = GPT(config), tokens_of(config)
    model(tokens, tokens).backward()
    assert [name for name, weight in model.named_parameters() if not weight.grad.abs().sum() > 0] == []


def test_a_state_can_be_kept_and_given_back():
    model, other = model_of(CONFIGS["tiny"], seed=0), model_of(CONFIGS["tiny"], seed=1)
    tokens = tokens_of(model.config)
    assert not torch.equal(model(tokens), other(tokens))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens), other(tokens))
    assert not [name for name in model.state_dict() if "rotation" in name], "positions are no part of a checkpoint"
    assert torch.equal(copy.deepcopy(model)(tokens), model(tokens))


def test_a_tied_head_is_the_embedding_also_after_a_move():
    model = GPT(CONFIGS["tiny"]).double()
    assert model.head.weight is model.embedding.weight
    assert GPT(CONFIGS["untied, all heads their own"]).head.weight.data_ptr() != model.embedding.weight.data_ptr()


def gradients(model, tokens, targets):
    """Loss, logits and the gradient of every parameter, in float64 on the CPU."""
    loss = model(tokens, targets)
    loss.backward()
    found = {name: weight.grad.double().cpu() for name, weight in model.named_parameters()}
    with torch.no_grad():
        return {**found, "loss": loss.double().cpu(), "logits": model(tokens).double().cpu()}


def error(found, exact):
    return math.sqrt(sum((found[name] - exact[name]).square().sum() for name in exact if name != "loss"))


def compare(config, dtype, length):
    """PyTorch's operators and ours err against float64 with the same bits; ours not much more."""
    factor = 3 if dtype == torch.float32 else 1.25
    tokens, targets = (tokens_of(config, length=length, seed=seed).to(device()) for seed in (1, 2))
    targets[0, 0] = -100
    eager = model_of(config, dtype=dtype).to(device())
    fused = GPT(dataclasses.replace(config, kernels="fused")).to(device(), dtype)
    fused.load_state_dict(eager.state_dict())
    exact = gradients(copy.deepcopy(eager).double(), tokens, targets)
    found, peer = gradients(fused, tokens, targets), gradients(eager, tokens, targets)
    assert error(found, exact) <= factor * error(peer, exact)
    assert error(peer, exact) < 0.1 * error(exact, {name: torch.zeros_like(value) for name, value in exact.items()})
    assert found["loss"].item() == pytest.approx(exact["loss"].item(), rel=10 * torch.finfo(dtype).eps)


@each_config
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 33])
def test_kernels_compute_the_same_as_pytorch(config, dtype, length):
    compare(config, dtype, length)


@pytest.mark.parametrize("length", [1, 33])
def test_kernels_compute_the_same_as_pytorch_in_float32(length):
    """Whose tiles are smaller; the other configurations are tried in 16 bits."""
    compare(CONFIGS["one key for all, odd sizes"], torch.float32, length)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_compute_the_same_as_pytorch_at_a_real_size(dtype):
    if device() == "cpu":
        pytest.skip("the CPU was asked for")
    compare(GPTConfig.small(layers=2, kv_heads=4), dtype, length=1023)


@pytest.mark.parametrize("steps", [[33], [10, 1, 1, 20, 1]], ids=["at once", "in chunks"])
@pytest.mark.parametrize("each_its_own", [False, True], ids=["one start", "a start each"])
def test_kernels_decode_with_a_cache(steps, each_its_own):
    model = model_of(GPTConfig.tiny(kernels="fused")).to(device())
    tokens = tokens_of(model.config).to(device())
    caches, start, found = [GrowingCache() for _ in model.blocks], 0, []
    for step in steps:
        where = torch.full((2,), start, device=device()) if each_its_own else start
        with torch.no_grad():
            found.append(model(tokens[:, start : start + step], start=where, caches=caches))
        start += step
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size = 0: expected a whole number"),
        ({"layers": 2.0}, "layers = 2.0"),
        ({"heads": True}, "heads = True"),
        ({"kv_heads": 3}, "kv_heads = 3: expected a divisor of heads = 4"),
        ({"kv_heads": 8}, "kv_heads = 8: expected a divisor"),
        ({"width": 60}, "width = 60: expected a multiple of 2·heads = 8"),
        ({"mlp_width": -1}, "mlp_width = -1"),
        ({"max_sequence": None}, "max_sequence = None"),
        ({"norm_epsilon": 0.0}, "norm_epsilon = 0.0"),
        ({"rope_base": math.nan}, "rope_base = nan"),
        ({"kernels": "triton"}, "kernels = 'triton': expected 'eager'"),
    ],
)
def test_impossible_configurations_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig.tiny(**changes)


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig.tiny().layers = 3
    assert dataclasses.replace(GPTConfig.tiny(), layers=3).layers == 3


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(5, dtype=torch.long),), {}, r"tokens has shape \(5,\)"),
        ((torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)), {}, r"targets has shape \(1, 4\)"),
        ((torch.zeros(1, 129, dtype=torch.long),), {}, "positions 0 … 128.*max_sequence = 128"),
        ((torch.zeros(1, 5, dtype=torch.long),), {"start": 124}, "positions 124 … 128"),
        ((torch.zeros(1, 5, dtype=torch.long),), {"start": -1}, "positions -1 … 3"),
        (
            (torch.zeros(1, 5, dtype=torch.long),),
            {"caches": [GrowingCache()]},
            "1 of them; expected one for each of the 2",
        ),
    ],
)
def test_tokens_that_do_not_fit_are_rejected(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        GPT(GPTConfig.tiny())(*arguments, **options)


def test_a_model_of_pytorchs_operators_needs_no_triton_kernels():
    source = (
        "import sys, torch\n"
        "from threeloops.models.gpt import GPT, GPTConfig\n"
        "GPT(GPTConfig.tiny())(torch.zeros(1, 4, dtype=torch.long))\n"
        "print([name for name in sys.modules if name.startswith('threeloops.inner.kernels')])\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
