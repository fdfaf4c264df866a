"""A GPT of quantised layers: what is replaced, what it computes, and that the better methods are better."""

import copy
import math

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.engine import Engine
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.quantized import (
    AlreadyQuantizedError,
    Calibration,
    InputStatistics,
    QuantizedLinear,
    Scheme,
    fold_scales,
    gptq,
    output_error,
    perplexity,
    quantize,
    quantize_weight,
    search_scales,
    weight_bytes,
)
from threeloops.product.request import Request, Sampling
from torch import nn

LAYERS = ("attention.qkv", "attention.output", "mlp.gate", "mlp.up", "mlp.down")


def tiny(**changes):
    torch.manual_seed(3)
    return GPT(GPTConfig.tiny(vocabulary_size=50, max_sequence=32, **changes)).requires_grad_(False)


def plain_copy(model):
    """The same numbers in nn.Linear, in float64."""
    made = copy.deepcopy(model)
    for parent in list(made.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, QuantizedLinear):
                linear = nn.Linear(layer.in_features, layer.out_features, bias=False, dtype=torch.float64)
                linear.weight = nn.Parameter(layer.quantized.dequantize(torch.float64), requires_grad=False)
                setattr(parent, name, linear)
    return made.double()


class TestLinear:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("shape", [(), (1,), (2, 0), (2, 3)])
    def test_computes_with_the_weights_that_the_codes_stand_for(self, dtype, shape):
        generator = torch.Generator().manual_seed(0)
        weight, bias = torch.randn(7, 33, generator=generator), torch.randn(7, generator=generator)
        layer = QuantizedLinear(quantize_weight(weight, Scheme(4, 16, symmetric=False)), bias)
        x = torch.randn(*shape, 33, generator=generator).to(dtype)
        exact = x.double() @ layer.quantized.dequantize(torch.float64).T + layer.bias.double()
        out = layer(x)
        assert out.dtype == dtype and out.shape == (*shape, 7)
        error = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
        torch.testing.assert_close(out.double(), exact, rtol=0, atol=error)

    @pytest.mark.parametrize("leading", [(1,), (2, 3), (70,)])
    @pytest.mark.parametrize(
        ("scheme", "rows", "columns"),
        [
            (Scheme(4, 32), 48, 96),
            (Scheme(4, 64, symmetric=False), 16, 128),
            (Scheme(8, 1 << 20), 33, 96),  # a scale per row
            (Scheme(4, 32), 47, 96),  # from here on PyTorch has no kernel
            (Scheme(4, 32), 48, 100),
            (Scheme(8, 32), 32, 96),
            (Scheme(8, 128), 32, 100),
            (Scheme(8, 128, symmetric=False), 32, 96),
        ],
        ids=str,
    )
    def test_bfloat16_on_a_cpu(self, scheme, rows, columns, leading):
        generator = torch.Generator().manual_seed(0)
        weight, bias = torch.randn(rows, columns, generator=generator) + 0.2, torch.randn(rows, generator=generator)
        layer = QuantizedLinear(quantize_weight(weight, scheme), bias, torch.bfloat16)
        x = torch.randn(*leading, columns, generator=generator).bfloat16()
        exact_weight = layer.quantized.dequantize(torch.float64)
        exact = x.double() @ exact_weight.T + layer.bias.double()
        size = (x.double().square() @ exact_weight.square().T).sqrt() + exact.abs()
        assert ((layer(x).double() - exact).abs() <= 6 * 2**-8 * size).all()

    @pytest.mark.parametrize(("scheme", "shape"), [(Scheme(4, 32), (32, 64)), (Scheme(8, 64), (32, 64))], ids=str)
    def test_few_tokens_in_bfloat16_on_a_cpu_do_without_the_dequantised_weight(self, scheme, shape, monkeypatch):
        layer, other = (QuantizedLinear(quantize_weight(torch.randn(shape), scheme)) for _ in range(2))
        x = torch.randn(2, shape[1]).bfloat16()
        layer(x)
        expected = other(x)
        layer.load_state_dict(other.state_dict())
        monkeypatch.setattr(type(layer.quantized), "dequantize", None)
        assert torch.equal(layer(x), expected), "it still computes with the codes that it had before"

    def test_looks_like_a_linear_layer(self):
        layer = QuantizedLinear(quantize_weight(torch.randn(7, 33), Scheme(4, 32)))
        assert (layer.in_features, layer.out_features, layer.bias) == (33, 7, None)
        assert layer.weight.shape == (7, 33) and layer.weight.dtype == torch.float32
        assert repr(layer) == "QuantizedLinear(33, 7, int4, group=32, symmetric)"
        assert not list(layer.parameters()) and set(layer.state_dict()) == {"codes", "scales"}
        assert layer.nbytes == Scheme(4, 32).nbytes(7, 33)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_moving_a_model_to_another_dtype_leaves_codes_and_scales(self, dtype):
        layer = QuantizedLinear(quantize_weight(torch.randn(7, 33), Scheme(4, 16, symmetric=False)), torch.ones(7))
        before = layer.quantized.dequantize()
        layer.to(dtype)
        assert layer.scales.dtype == torch.float16 and layer.codes.dtype == layer.zeros.dtype == torch.uint8
        assert torch.equal(layer.quantized.dequantize(), before)
        assert layer.weight.dtype == layer.bias.dtype == dtype

    def test_its_state_can_be_saved_and_loaded(self):
        one, other = (QuantizedLinear(quantize_weight(torch.randn(7, 33), Scheme(4, 16))) for _ in range(2))
        other.load_state_dict(one.state_dict())
        assert torch.equal(one.weight, other.weight)


class TestModel:
    def test_all_linear_layers_but_the_head_are_replaced_in_a_copy(self, trained):
        before = copy.deepcopy(trained.state_dict())
        small = quantize(trained, scheme=Scheme(8, 32))
        names = {name for name, module in small.named_modules() if isinstance(module, QuantizedLinear)}
        assert names == {f"blocks.{layer}.{name}" for layer in range(2) for name in LAYERS}
        for name in names:
            expected = quantize_weight(trained.get_submodule(name).weight, Scheme(8, 32))
            assert torch.equal(small.get_submodule(name).codes, expected.codes)
        assert trained.state_dict().keys() == before.keys()
        assert all(torch.equal(now, before[name]) for name, now in trained.state_dict().items())

    @pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
    def test_it_computes_what_its_dequantised_weights_do(self, method, tokens):
        calibration = None if method == "rtn" else tokens(96, 0).view(3, 32)
        small = quantize(tiny(), method, Scheme(4, 16), calibration=calibration, head=True)
        read = tokens(40, 5).view(2, 20)
        torch.testing.assert_close(small(read).double(), plain_copy(small)(read), rtol=1e-4, atol=1e-4)

    def test_fused_kernels_find_a_matrix_where_they_look_for_one(self, tokens):
        small = quantize(tiny(kernels="fused", tied_embeddings=False), scheme=Scheme(4, 16), head=True)
        eager = tiny(tied_embeddings=False).double()
        eager.load_state_dict(plain_copy(small).state_dict())
        read = tokens(20, 5)[None]
        torch.testing.assert_close(small(read).double(), eager(read), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_quantised_head_leaves_the_embedding_it_shares_its_matrix_with(self, method, tied, tokens):
        model = tiny(tied_embeddings=tied)
        calibration = None if method == "rtn" else tokens(96, 0).view(3, 32)
        small = quantize(model, method, Scheme(8, 32), calibration=calibration, head=True)
        assert isinstance(small.head, QuantizedLinear)
        assert torch.equal(small.embedding.weight, model.embedding.weight)
        assert (model.head.weight is model.embedding.weight) == tied
        read = tokens(40, 5).view(2, 20)
        torch.testing.assert_close(small(read), model(read), rtol=0, atol=0.02 * float(model(read).abs().max()))

    def test_a_shared_matrix_stays_shared_where_the_head_is_left_alone(self):
        small = quantize(tiny(), scheme=Scheme(4, 32))
        assert small.head.weight is small.embedding.weight

    def test_bytes_are_those_of_codes_and_of_what_is_left(self):
        model = tiny()
        scheme = Scheme(4, 32)
        shapes = [(128, 64), (64, 64), (192, 64), (192, 64), (64, 192)]
        rest = 50 * 64 + 5 * 64
        assert weight_bytes(model) == 4 * (rest + 2 * sum(rows * columns for rows, columns in shapes))
        small = quantize(model, scheme=scheme)
        assert weight_bytes(small) == 4 * rest + 2 * sum(scheme.nbytes(*shape) for shape in shapes)
        headed = quantize(model, scheme=scheme, head=True)
        assert weight_bytes(headed) == weight_bytes(small) + scheme.nbytes(50, 64)

    def test_the_engine_serves_it(self, tokens):
        small = quantize(tiny().double(), scheme=Scheme(4, 32), head=True)
        prompts = [tokens(length, length).tolist() for length in (3, 9)]
        expected = []
        for prompt in prompts:
            known = list(prompt)
            for _ in range(8):
                known.append(int(small(torch.tensor([known]))[0, -1].argmax()))
            expected.append(known[len(prompt) :])
        requests = [Request(str(place), tuple(each), Sampling(max_tokens=8)) for place, each in enumerate(prompts)]
        Engine(ModelRunner(small, 8, 4), BlockManager(8, 4)).run(requests)
        assert [request.output for request in requests] == expected

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("method", ["gptq", "awq"])
    def test_other_dtypes_are_computed_in_as_before(self, dtype, method, tokens):
        small = quantize(tiny().to(dtype), method, Scheme(8, 16), calibration=tokens(96, 0).view(3, 32))
        assert small(tokens(10, 1)[None]).dtype == dtype

    def test_errors_name_what_is_wrong_and_change_nothing(self, tokens):
        model, calibration = tiny(), tokens(64, 0).view(2, 32)
        small = quantize(model)
        for build, words in (
            (lambda: quantize(model, "magic"), "method = 'magic': expected 'rtn', 'gptq' or 'awq'"),
            (lambda: quantize(model, "gptq"), "method = 'gptq' with calibration = None: expected tokens"),
            (lambda: quantize(model, calibration=calibration), "method = 'rtn' with calibration = tokens"),
            (lambda: quantize(model, "awq", calibration=calibration, act_order=True), "act_order with method = 'awq'"),
            (lambda: quantize(model, "awq", calibration=calibration[0]), r"tokens have shape \(32,\)"),
            (lambda: quantize(model, "awq", calibration=calibration[:0]), r"tokens have shape \(0, 32\)"),
            (lambda: quantize(model, "awq", calibration=calibration.view(1, 64)), "have 64 tokens: .* = 32; cut"),
            (lambda: quantize(model, "awq", calibration=calibration + 40), "expected 0 to 49, the model's vocabulary"),
            (lambda: quantize(small), r"10 layers .*, blocks.0.attention.qkv for one"),
        ):
            with pytest.raises(ValueError, match=words):
                build()
        with pytest.raises(AlreadyQuantizedError):
            quantize(small)


class TestCalibration:
    def test_statistics_are_of_the_inputs_that_each_layer_really_gets(self, trained, tokens):
        read = tokens(64 * 5, 3).view(5, 64)
        calibration = Calibration(trained, read, batch=2)
        seen = {}
        hooks = [
            block.get_submodule(name).register_forward_pre_hook(
                lambda module, arguments, key=(layer, name): seen.__setitem__(key, arguments[0])
            )
            for layer, block in enumerate(trained.blocks)
            for name in LAYERS
        ]
        expected_hidden = trained.hidden(read)
        for hook in hooks:
            hook.remove()
        for layer, block in enumerate(trained.blocks):
            found = calibration.statistics(block, LAYERS)
            for name in LAYERS:
                x = seen[layer, name].flatten(0, 1).double()
                torch.testing.assert_close(found[name].gram, x.T @ x, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(found[name].mean_abs, x.abs().mean(0), rtol=1e-4, atol=1e-5)
            calibration.advance(block)
        x = expected_hidden.flatten(0, 1).double()
        torch.testing.assert_close(calibration.after(trained.norm).gram, x.T @ x, rtol=1e-4, atol=1e-4)

    def test_hooks_are_gone_afterwards_also_after_an_error(self, trained, tokens):
        calibration = Calibration(trained, tokens(64, 3)[None])
        block = trained.blocks[0]
        calibration.statistics(block, LAYERS)
        calibration._rotation = None
        with pytest.raises(TypeError):
            calibration.statistics(block, LAYERS)
        assert not any(module._forward_pre_hooks for module in block.modules())

    def test_gptq_sees_the_inputs_that_quantised_layers_before_it_make(self, trained, tokens):
        """Each layer is done with the statistics of a model in which all before it, and none after, are done."""
        read = tokens(64 * 8, 3).view(8, 64)
        small = quantize(trained, "gptq", Scheme(4, 32), calibration=read)
        for layer, stage, names in (
            (0, 1, ("attention.output",)),
            (1, 2, ("mlp.gate", "mlp.up")),
            (1, 3, ("mlp.down",)),
        ):
            partly = copy.deepcopy(trained)
            for earlier in range(layer):
                partly.blocks[earlier] = small.blocks[earlier]
            for done in (("attention.qkv",), ("attention.output",), ("mlp.gate", "mlp.up"))[:stage]:
                for name in done:
                    parent, leaf = name.split(".")
                    setattr(getattr(partly.blocks[layer], parent), leaf, small.blocks[layer].get_submodule(name))
            through = Calibration(partly, read)
            for earlier in range(layer):
                through.advance(partly.blocks[earlier])
            for name in names:
                gram = through.statistics(partly.blocks[layer], names)[name].gram
                expected = gptq(trained.blocks[layer].get_submodule(name).weight, gram, Scheme(4, 32))
                assert torch.equal(small.blocks[layer].get_submodule(name).codes, expected.codes)


class TestAWQ:
    def statistics(self, model, tokens):
        return Calibration(model, tokens(64 * 8, 3).view(8, 64)).statistics(model.blocks[0], LAYERS)

    @pytest.mark.parametrize(
        "changes", [{"kv_heads": 1}, {"kv_heads": 2}, {"kv_heads": 4}, {"qkv_bias": True}], ids=str
    )
    def test_folding_changes_nothing_that_the_block_computes(self, changes, tokens, monkeypatch):
        """Whatever the scales are, as long as channels that are made from one have the same."""

        def any_scales(weights, statistics, scheme, *, tied=(1, 1)):
            copies, distance = tied
            parts = torch.rand(weights[0].shape[1] // copies // distance, 1, distance, dtype=torch.float64) + 0.5
            return parts.expand(-1, copies, -1).flatten()

        monkeypatch.setattr("threeloops.product.quantized.awq.search_scales", any_scales)
        model = tiny(**changes).double()
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        read = tokens(64, 1).view(2, 32)
        through = Calibration(model, read)
        folded = copy.deepcopy(model)
        fold_scales(folded.blocks[0], through.statistics(model.blocks[0], LAYERS), Scheme(4, 16))
        for name in LAYERS:
            changed = folded.blocks[0].get_submodule(name).weight / model.blocks[0].get_submodule(name).weight
            assert (changed - 1).abs().max() > 0.05, f"{name} was not scaled"
        torch.testing.assert_close(folded(read), model(read), rtol=1e-9, atol=1e-9)

    def test_scales_are_the_best_of_the_grid(self, trained, tokens):
        found = self.statistics(trained, tokens)["mlp.down"]
        weight, scheme = trained.blocks[0].mlp.down.weight.double(), Scheme(4, 32)

        def error(scales):
            back = quantize_weight(weight * scales, scheme).dequantize(torch.float64) / scales
            return output_error(weight, back, found.gram)

        candidates = []
        for step in range(20):
            scales = found.mean_abs.clamp(min=1e-4 * found.mean_abs.max()) ** (step / 20)
            candidates.append(scales / (scales.max() * scales.min()).sqrt())
        best = min(candidates, key=error)
        chosen = search_scales([weight], found, scheme)
        torch.testing.assert_close(chosen, best)
        assert error(chosen) < error(torch.ones_like(chosen))

    def test_layers_that_read_the_same_inputs_are_searched_together(self, trained, tokens):
        found, mlp = self.statistics(trained, tokens)["mlp.gate"], trained.blocks[0].mlp
        both = search_scales([mlp.gate.weight, mlp.up.weight], found, Scheme(4, 32))
        stacked = search_scales([torch.cat([mlp.gate.weight, mlp.up.weight])], found, Scheme(4, 32))
        assert torch.equal(both, stacked)

    def test_heads_that_share_values_share_scales(self):
        """4 heads of 16 dimensions, two to each head of values, whose channels differ by much."""
        generator = torch.Generator().manual_seed(0)
        size = torch.randn(2, 1, 16, generator=generator, dtype=torch.float64).mul(2).exp().expand(2, 2, 16)
        size = (size * (1 + 0.2 * torch.rand(2, 2, 16, generator=generator, dtype=torch.float64))).flatten()
        found = InputStatistics(64, "cpu")
        found.add(size.diag())
        weight = torch.randn(8, 64, generator=generator, dtype=torch.float64) / size
        scales = search_scales([weight], found, Scheme(4, 64), tied=(2, 16)).view(2, 2, 16)
        assert torch.equal(scales[:, 0], scales[:, 1]) and scales.max() > 10 * scales.min()
        spread = size.view(2, 2, 16).mean(1) / scales[:, 0] ** (size.log().std() / scales.log().std())
        assert spread.max() < 1.5 * spread.min()  # a power of the mean of those that share

    def test_inputs_that_are_always_zero_are_left_alone(self):
        class Nothing:
            mean_abs, gram = torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)

        assert torch.equal(search_scales([torch.ones(2, 4)], Nothing, Scheme(4, 16)), torch.ones(4).double())
        Nothing.mean_abs = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
        Nothing.gram = torch.diag(Nothing.mean_abs)
        assert search_scales([torch.randn(2, 4)], Nothing, Scheme(4, 16)).isfinite().all()


class TestQuality:
    @pytest.fixture
    def found(self, trained, tokens):
        """Nats per token that each method loses, on text that it was not calibrated with."""
        text, calibration = tokens(64 * 200, 7), tokens(64 * 40, 3).view(-1, 64)
        exact = perplexity(trained, text).nats

        def lost(method, scheme, **options):
            tokens = None if method == "rtn" else calibration
            return perplexity(quantize(trained, method, scheme, calibration=tokens, **options), text).nats - exact

        return exact, lost

    def test_the_model_has_learnt_something(self, found):
        assert 0.5 < found[0] < 0.6 * math.log(32)

    def test_8_bits_lose_next_to_nothing(self, found):
        for method in ("rtn", "gptq", "awq"):
            assert abs(found[1](method, Scheme(8, 32))) < 0.004

    def test_with_4_bits_gptq_and_awq_lose_less_than_plain_rounding(self, found):
        plain = found[1]("rtn", Scheme(4, 64))
        assert plain > 0.01
        for method, options, part in (("gptq", {}, 0.85), ("gptq", {"act_order": True}, 0.85), ("awq", {}, 0.5)):
            assert found[1](method, Scheme(4, 64), **options) < part * plain, (method, options)
