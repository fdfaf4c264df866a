"""Exported graphs: the logits of the model, for any batch and length, in PyTorch and in ONNX Runtime."""

import copy
import sys
import warnings

import pytest
import torch
from decoding import greedy_alone, logits_alone, random_model
from threeloops.models.rope_scaling import YarnScaling
from threeloops.product.decode import export_decode, export_prefill, write_onnx

MODELS = {
    "grouped": random_model(dtype=torch.float32, heads=4, kv_heads=2),
    "one head": random_model(dtype=torch.float32, heads=1, kv_heads=1),
    "variant": random_model(
        dtype=torch.float32,
        heads=4,
        kv_heads=2,
        qkv_bias=True,
        qk_norm=True,
        head_dim=6,
        sliding_window=5,
        rope_scaling=YarnScaling(4.0, 16),
    ),
}
PROMPTS = [[[5]], [[1, 2, 3], [4, 5, 6]], [list(range(20))] * 3]
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def programs(model):
    return export_prefill(model), export_decode(model)


def continued(prefill, decode, prompts, count):
    """Greedy tokens and the logits that gave them."""
    logits, keys, values = prefill(torch.tensor(prompts))
    tokens, seen = [], [logits]
    for _ in range(count - 1):
        tokens.append(seen[-1].argmax(-1))
        logits, keys, values = decode(tokens[-1][:, None], keys, values)
        seen.append(logits)
    return torch.stack([*tokens, seen[-1].argmax(-1)], 1), torch.stack(seen, 1), keys


def are_those_of_the_model(model, prefill, decode):
    exact = copy.deepcopy(model).double()
    for prompts in PROMPTS:
        tokens, logits, keys = continued(prefill, decode, prompts, 4)
        assert keys.shape == (2, len(prompts), model.config.kv_heads, len(prompts[0]) + 3, model.config.head_dim)
        for prompt, found, own in zip(prompts, tokens.tolist(), logits, strict=True):
            assert found == greedy_alone(exact, prompt, 4)
            for place in range(4):
                expected = logits_alone(exact, [*prompt, *found[:place]])
                torch.testing.assert_close(own[place].double(), expected, **CLOSE)


def test_exported_graphs_give_the_models_logits(model, programs):
    prefill, decode = (program.module() for program in programs)
    are_those_of_the_model(model, prefill, decode)


# With one head the graph is the same but for sizes: what was exported is the model's (above), and what ONNX makes of it
# is shown with grouped heads.
@pytest.mark.parametrize(
    "model",
    ["grouped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("one head", "variant"))],
    indirect=True,
)
def test_onnx_runtime_gives_the_models_logits(model, programs, tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    runs = []
    for name, program in zip(("prefill", "decode"), programs, strict=True):
        write_onnx(program, tmp_path / f"{name}.onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = runtime.InferenceSession(tmp_path / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
        inputs = [each.name for each in session.get_inputs()]
        assert inputs == (["tokens"] if name == "prefill" else ["tokens", "keys", "values"])
        after = "" if name == "prefill" else "_after"
        assert [each.name for each in session.get_outputs()] == ["logits", f"keys{after}", f"values{after}"]

        def run(*arguments, session=session, inputs=inputs):
            given = {key: value.numpy() for key, value in zip(inputs, arguments, strict=True)}
            return [torch.from_numpy(each) for each in session.run(None, given)]

        runs.append(run)
    are_those_of_the_model(model, *runs)


def test_more_positions_than_the_model_has_are_refused(programs):
    prefill, _ = (program.module() for program in programs)
    with pytest.raises(Exception, match="128"):
        prefill(torch.zeros(1, 129, dtype=torch.long))


def test_scripting_is_deprecated():
    """code-5: what older services load with `torch.jit.load` is made by a function that PyTorch advises against."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.jit.script(torch.nn.Linear(2, 2))
    advice = "not supported" if sys.version_info >= (3, 14) else "deprecated"
    assert any(advice in str(each.message) and "torch.export" in str(each.message) for each in found)
