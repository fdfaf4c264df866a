"""Latent attention against float64, written out token by token and head by head, and against transformers."""

import math

import pytest
import torch
from threeloops.models.gpt import RotaryPositions
from threeloops.models.latent_attention import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    LatentAttention,
    LatentShape,
    queries_to_expand_for,
)

SMALL = LatentShape(layers=2, width=48, heads=4, query_rank=24, latent_dim=20, head_dim=12, rotary_dim=8, value_dim=10)
BASE = 10_000.0


def layer(shape=SMALL, seed=0):
    torch.manual_seed(seed)
    attention = LatentAttention(shape)
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return attention.eval().requires_grad_(False)


def rotation(start, count, shape=SMALL):
    return RotaryPositions(shape.rotary_dim, 64, BASE)(start, count)


def oracle(attention, x):
    """The equations of the paper's appendix C in float64 for one sequence, (tokens, width), a token and a head at a
    time."""
    shape = attention.shape
    weights = {name: value.double() for name, value in attention.state_dict().items()}

    def normalised(vector, weight):
        return vector / torch.sqrt((vector**2).mean() + 1e-6) * weight

    def turned(vector, position):
        result, half = torch.empty_like(vector), len(vector) // 2
        for pair in range(half):
            angle = position * BASE ** (-2 * pair / len(vector))
            a, b = vector[pair], vector[pair + half]
            result[pair] = a * math.cos(angle) - b * math.sin(angle)
            result[pair + half] = b * math.cos(angle) + a * math.sin(angle)
        return result

    latents, positions, results = [], [], []
    for place, token in enumerate(x.double()):
        down = weights["latent_down.weight"] @ token
        latents.append(normalised(down[: shape.latent_dim], weights["latent_norm.weight"]))
        positions.append(turned(down[shape.latent_dim :], place))
        query = normalised(weights["query_down.weight"] @ token, weights["query_norm.weight"])
        query = (weights["query_up.weight"] @ query).view(shape.heads, -1)
        outputs = []
        for head in range(shape.heads):
            rows = weights["latent_up.weight"].view(shape.heads, -1, shape.latent_dim)[head]
            content, position = query[head, : shape.head_dim], turned(query[head, shape.head_dim :], place)
            scores = torch.stack(
                [
                    (content @ (rows[: shape.head_dim] @ latent) + position @ shared)
                    / math.sqrt(shape.head_dim + shape.rotary_dim)
                    for latent, shared in zip(latents, positions, strict=True)
                ]
            )
            chances = (scores - scores.max()).exp()
            chances /= chances.sum()
            outputs.append(sum(p * (rows[shape.head_dim :] @ c) for p, c in zip(chances, latents, strict=True)))
        results.append(weights["output.weight"] @ torch.cat(outputs))
    return torch.stack(results)


@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 1, 1, 3]], ids=str)
def test_both_forms_equal_the_equations_whatever_the_chunks(absorbed, chunks):
    attention = layer()
    x = torch.randn(2, 9, SMALL.width, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([oracle(attention, sequence) for sequence in x])
    outputs, cache, start = [], None, 0
    for count in chunks:
        part = x[:, start : start + count]
        output, cache = attention(part, rotation(start, count), cache, absorbed=absorbed)
        outputs.append(output)
        start += count
    assert cache.shape == (2, 9, SMALL.cached)
    torch.testing.assert_close(torch.cat(outputs, 1).double(), expected, rtol=0, atol=1e-5)


def test_the_two_forms_agree_in_float64_to_rounding():
    attention = layer().double()
    x = torch.randn(3, 17, SMALL.width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    absorbed, expanded = (attention(x, rotation(0, 17), absorbed=form)[0] for form in (True, False))
    torch.testing.assert_close(absorbed, expanded, rtol=0, atol=1e-13)


@pytest.mark.parametrize("absorbed", [True, False])
def test_it_computes_what_transformers_computes(absorbed):
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    config = transformers.DeepseekV3Config(
        hidden_size=SMALL.width, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=20,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, rope_interleave=False, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": BASE}, attn_implementation="eager",
    )  # fmt: skip
    theirs, attention = DeepseekV3Attention(config, 0).eval(), layer()
    names = {
        "q_a_proj": "query_down", "q_a_layernorm": "query_norm", "q_b_proj": "query_up", "o_proj": "output",
        "kv_a_proj_with_mqa": "latent_down", "kv_a_layernorm": "latent_norm", "kv_b_proj": "latent_up",
    }  # fmt: skip
    theirs.load_state_dict(
        {f"{name}.weight": attention.get_submodule(own).weight for name, own in names.items()}, strict=True
    )
    x = torch.randn(2, 9, SMALL.width, generator=torch.Generator().manual_seed(3))
    rotated = DeepseekV3RotaryEmbedding(config)(x, torch.arange(9)[None])
    hidden = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected, _ = theirs(x, rotated, hidden)
    torch.testing.assert_close(attention(x, rotation(0, 9), absorbed=absorbed)[0], expected, rtol=0, atol=1e-5)


def test_the_shapes_of_deepseek_v3_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config()
    assert (
        LatentShape(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            query_rank=config.q_lora_rank,
            latent_dim=config.kv_lora_rank,
            head_dim=config.qk_nope_head_dim,
            rotary_dim=config.qk_rope_head_dim,
            value_dim=config.v_head_dim,
        )
        == DEEPSEEK_V3
    )


def test_what_deepseek_publishes_about_its_cache():
    assert DEEPSEEK_V2.cached == 576 and DEEPSEEK_V2.expanded == 40_960
    assert DEEPSEEK_V2.cached / (2 * DEEPSEEK_V2.head_dim) == 2.25, "as GQA with 2.25 groups, table 1"
    assert DEEPSEEK_V2.layers * DEEPSEEK_V2.cached * 2 == 69_120, "bytes per token in bfloat16"
    assert DEEPSEEK_V3.layers * DEEPSEEK_V3.cached * 2 == 70_272


@pytest.mark.parametrize("shape", [SMALL, DEEPSEEK_V3], ids=["small", "v3"])
@pytest.mark.parametrize(("queries", "context"), [(1, 5), (3, 64), (200, 1000)])
def test_the_work_is_that_of_the_products(shape, queries, context):
    """Count the products of the two forms one by one."""

    def product(m, k, n, times=1):
        return 2 * m * k * n * times

    up = [(shape.latent_dim, shape.head_dim), (shape.latent_dim, shape.value_dim)]
    absorbed = sum(product(queries, a, b, shape.heads) for a, b in up)
    absorbed += product(queries, shape.latent_dim + shape.rotary_dim, context, shape.heads)
    absorbed += product(queries, context, shape.latent_dim, shape.heads)
    expanded = sum(product(context, a, b, shape.heads) for a, b in up)
    expanded += product(queries, shape.head_dim + shape.rotary_dim, context, shape.heads)
    expanded += product(queries, context, shape.value_dim, shape.heads)
    assert shape.absorbed_work(queries, context).flops == absorbed
    assert shape.expanded_work(queries, context).flops == expanded
    read = 2 * (context * shape.cached + shape.heads * shape.latent_dim * (shape.head_dim + shape.value_dim))
    assert shape.absorbed_work(queries, context).bytes == shape.expanded_work(queries, context).bytes == read


def test_from_171_queries_on_expanding_is_less_arithmetic():
    limit = queries_to_expand_for(DEEPSEEK_V3)
    assert limit == 512 * 256 / 768
    context = 10**7
    assert DEEPSEEK_V3.absorbed_work(170, context).flops < DEEPSEEK_V3.expanded_work(170, context).flops
    assert DEEPSEEK_V3.absorbed_work(171, context).flops > DEEPSEEK_V3.expanded_work(171, context).flops
    narrow = LatentShape(1, 8, 2, 8, latent_dim=4, head_dim=4, rotary_dim=2, value_dim=4)
    assert queries_to_expand_for(narrow) == math.inf


@pytest.mark.parametrize(("change", "message"), [({"rotary_dim": 7}, "rotary_dim = 7"), ({"heads": 0}, "heads = 0")])
def test_a_shape_that_does_not_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        LatentShape(**{**vars(SMALL), **change})
