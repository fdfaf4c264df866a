# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: What does one token cost? Deep dives
#     minutes: 45
# ---

# %% [markdown]
# # What does one token cost? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: GPTQ and AWQ, the kernel that reads through block
# tables, multi-head latent attention, CUDA graphs, compiled and exported models, GGUF files, guesses from the prompt and
# from the model's own features, and answers that follow a grammar.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import pathlib
import tempfile
import time
import warnings
from collections import Counter

import torch
from threeloops.inner import interpreter
from threeloops.lab import audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine, Policy
from threeloops.product.decode import (
    BlockManager,
    ContiguousCache,
    LookupDraft,
    SpeculativeRunner,
    expected_speedup,
    export_decode,
    export_prefill,
    generate,
    write_onnx,
)
from threeloops.product.quantized import Scheme, output_error, perplexity, quantize
from threeloops.product.request import Request, Sampling
from threeloops.product.trained import standard_library, trained
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)  # so that times depend less on what else runs
INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU


def best_of(function, rounds=7, calls=20):
    """Seconds per call: the best of some rounds."""
    function()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        found.append((time.perf_counter() - began) / calls)
    return min(found)


# %% [markdown]
# ## GPTQ and AWQ
#
# Rounding to the nearest keeps every single weight as close as possible. What counts is the layer's output, though. If
# two inputs usually rise together, one weight can make up for the error of the other.
#
# **GPTQ** (Frantar et al., 2022) rounds one input column after another and adjusts the columns that are left, so that
# they compensate for the error on a sample of inputs. **AWQ** (Lin et al., 2023) multiplies columns with large inputs
# by a factor before rounding, and divides the inputs by it; those weights then fall on a finer grid. Both need a sample
# of text (128 segments of 2,048 tokens in GPTQ's paper), and neither trains.
#
# *Worked example.* One row of weights [1.4, 1.4], a grid of whole numbers, and both inputs always equal to x. The
# output is 2.8 x. Rounding gives [1, 1] and 2 x. GPTQ rounds the first weight to 1, adds the lost 0.4 to the second,
# and rounds 1.8 to 2: together 3 x. The squared error falls from 0.64 x² to 0.04 x².

# %% tags=["demo"]
predict(
    "rows",
    "The weights of a layer in int4: what percentage of plain rounding's squared output error is left with GPTQ?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
model, (text, unseen) = trained("tiny"), (part.long() for part in standard_library())
seen = torch.stack([text[start : start + 128] for start in range(0, len(text) - 128, len(text) // 32)])
test = unseen[:32_768]
found = {}


def output_errors(few):
    """Of each layer of the first block, on the inputs of the plain model, from tokens that no method has seen."""
    from threeloops.product.quantized import Calibration

    tokens = test[: 16 * 128].view(16, 128)
    names = ("attention.qkv", "attention.output", "mlp.gate", "mlp.down")
    statistics = Calibration(model, tokens).statistics(model.blocks[0], names)
    return [
        output_error(
            model.blocks[0].get_submodule(name).weight, few.blocks[0].get_submodule(name).weight, statistics[name].gram
        )
        for name in names
    ]


plain = perplexity(model, test, window=128).value
rows = [("float32", "", "", "", "", f"{plain:.3f}")]
for name, method in (("rounded", "rtn"), ("GPTQ", "gptq")):
    few = quantize(model, method, Scheme(4, 64), calibration=seen if method == "gptq" else None)
    found[method] = output_errors(few)
    rows.append((name, *(f"{each:.2e}" for each in found[method]), f"{perplexity(few, test, window=128).value:.3f}"))
few = quantize(model, "awq", Scheme(4, 64), calibration=seen)
rows.append(("AWQ", "", "", "", "", f"{perplexity(few, test, window=128).value:.3f}"))
with reveal("rows"):
    show.against_prediction(
        "rows",
        round(100 * sum(found["gptq"]) / sum(found["rtn"])),
        unit="%",
        source="measured here, mean of the four layers of a block",
    )
    show.table(
        rows,
        header=("int4, groups of 64", "qkv", "output", "gate", "down", "perplexity"),
        caption="Output errors Σ‖(W − Ŵ)x‖² / Σ‖Wx‖² of the first block, on unseen bytes. AWQ scales the weights themselves, so only its perplexity is comparable",
    )

# %% [markdown]
# GPTQ leaves less than half of the output's error, and of the rise in perplexity. AWQ protects the weights that
# meet the largest inputs; a model as small as this one has no outliers among its inputs, so little is gained. Text that
# differs from the calibration text suffers most, so measure on your own.
#
# ## The kernel that reads through block tables
#
# Exercise 4 gathers all keys and values side by side and then attends to them: one read, one write, and one more read.
# The library's kernel walks over the table instead. One program takes all query heads that share a key-value head, so
# each key is loaded once. The traffic meter counts what the kernel moves.

# %% tags=["demo"]
predict("traffic", "How many times the bytes of all keys and values does the kernel move?", unit="×")

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.kernels.attention.paged_attention import paged_attention
from threeloops.inner.kernels.attention.paged_attention import reference as gathered
from threeloops.inner.meter import meter

lengths, size, heads, kv_heads, head_dim = [61, 17, 40], 16, 8, 2, 32
generator = torch.Generator().manual_seed(1)
keys, values = (torch.randn(16 * size, kv_heads, head_dim, generator=generator) for _ in range(2))
q = torch.randn(3, heads, head_dim, generator=generator)
tables = torch.tensor([[7, 2, 9, 4], [1, 12, 0, 0], [3, 8, 15, 0]])
once = 2 * sum(lengths) * kv_heads * head_dim * 4
if INTERPRETED:
    with meter() as traffic:
        result = paged_attention(q, keys, values, tables, torch.tensor(lengths), size)
    moved = traffic.total.unique_loaded + traffic.total.unique_stored
    show.against_prediction("traffic", round(moved / once, 2), unit="×", source="counted in Triton's interpreter")
else:
    result = paged_attention(*(each.cuda() for each in (q, keys, values, tables, torch.tensor(lengths))), size).cpu()
    print("The traffic meter works only in Triton's interpreter, which this course uses on machines without a GPU.")
expected = gathered(q, keys, values, tables, torch.tensor(lengths), size)
print(f"largest difference from a gather and PyTorch's attention: {float((result - expected).abs().max()):.1e}")

# %% [markdown]
# The kernel also reads queries and tables and writes the results, which is why it moves more than 1×. With few sequences the kernel splits each sequence between several
# programs and merges their results, as in lab 04, because otherwise most of the GPU would be idle. This is
# *Flash-Decoding*.
#
# ## One latent for all heads
#
# Grouped heads shrink the cache because there are fewer keys and values. **Multi-head latent attention** (MLA,
# [DeepSeek-V2, 2024](https://arxiv.org/abs/2405.04434)) keeps all heads, and caches one short vector per token instead:
# the *latent*. Each head makes its key from it with a matrix W_UK, and its value with W_UV.
#
# *Worked example.* The latent is [3], and W_UK = [2, 1]ᵀ makes the key [6, 3]. With the query [1, 4], the score is 6 + 12
# = 18. Now multiply the query by W_UK first: 2·1 + 1·4 = 6. Then 6 · 3 = 18, and the key was never made. The query has
# **absorbed** W_UK, so it can be compared with the cached latents directly, and all heads read the same ones.
#
# A rotation that depends on the position (RoPE) cannot stand between the two factors, because then there would be a
# different product for each distance. So each token also caches one rotated key of 64 elements that all heads share.

# %% tags=["demo"]
myth("dec-7")
predict(
    "latent",
    "DeepSeek-V3 caches 512 + 64 elements per token and layer. How many key-value heads of width 128 would fill as much?",
    unit="heads",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.roofline import Roofline
from threeloops.models.gpt import RotaryPositions
from threeloops.models.latent_attention import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    LatentAttention,
    LatentShape,
    queries_to_expand_for,
)

dense_67b = 95 * 2 * 8 * 128  # layers, keys and values, key-value heads, width: its config.json
caches = {
    "DeepSeek 67B: 8 key-value heads": dense_67b,
    "DeepSeek-V2, if each of 128 heads had its own": DEEPSEEK_V2.layers * DEEPSEEK_V2.expanded,
    "DeepSeek-V2: latents": DEEPSEEK_V2.layers * DEEPSEEK_V2.cached,
    "DeepSeek-V3: latents": DEEPSEEK_V3.layers * DEEPSEEK_V3.cached,
}
with reveal("latent"):
    show.against_prediction("latent", DEEPSEEK_V3.cached / (2 * 128), unit="heads", source="counted")
    show.table(
        [(name, f"{elements:,}", f"{elements * 2 / 2**10:.1f} KiB") for name, elements in caches.items()],
        header=("model", "elements per token", "in BF16"),
        caption="Sizes from section 3.1.2 of arXiv:2405.04434, section 4.2 of arXiv:2412.19437, and DeepSeek 67B's config.json",
    )
in_bf16 = 1 - caches["DeepSeek-V2: latents"] / dense_67b
deployed = 1 - caches["DeepSeek-V2: latents"] * 6 / (dense_67b * 16)
audit(
    "dec-7",
    round(100 * in_bf16, 1),
    "% fewer elements than DeepSeek 67B",
    "model",
    "corrected",
    how=f"60 × 576 elements per token instead of 95 × 2 × 8 × 128. The published 93.3% fits only if the latents are also quantized to the 6 bits that section 3.2.3 reports for deployment, and DeepSeek 67B's cache is not: {100 * deployed:.1f}%",
)

# %% [markdown]
# Do both orders give the same? This layer has the proportions of DeepSeek-V3, at an eighth of its size.

# %% tags=["demo"]
eighth = LatentShape(1, 896, 16, 192, latent_dim=64, head_dim=16, rotary_dim=8, value_dim=16)
torch.manual_seed(0)
layer, hidden = LatentAttention(eighth).requires_grad_(False), torch.randn(2, 65, 896)
rotation = RotaryPositions(8, 65, 10_000.0)
_, latents = layer(hidden[:, :64], rotation(0, 64))
new = [layer(hidden[:, 64:], rotation(64, 1), latents, absorbed=form)[0] for form in (True, False)]
print(f"cache: {tuple(latents.shape)}; largest difference of the two forms: {float((new[0] - new[1]).abs().max()):.1e}")
assert torch.allclose(*new, rtol=0, atol=1e-5)

# %% [markdown]
# The bytes are not free. A query is compared with 576 elements instead of 192, and sums up 512 instead of 128. The other
# form, **expanding** all latents to keys and values, costs more per cached token, but queries of the same sequence share
# it. In a prefill there are many of those.

# %% tags=["demo"]
predict(
    "expand",
    "From how many new tokens of one sequence on is it less arithmetic to expand DeepSeek-V3's latents?",
    unit="tokens",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
h100 = accelerator("H100 SXM")
roof = Roofline(h100, "bf16")
million = 2**20
ways = {
    "own keys and values cached": (2 * DEEPSEEK_V3.expanded, 2 * DEEPSEEK_V3.expanded),
    "8 key-value heads (GQA)": (2 * 2 * 8 * 128, 4 * 128 * 128),
    "latents, expanded for each token": (
        2 * DEEPSEEK_V3.cached,
        DEEPSEEK_V3.expanded_work(1, 2).flops - DEEPSEEK_V3.expanded_work(1, 1).flops,
    ),
    "latents, absorbed": (
        2 * DEEPSEEK_V3.cached,
        DEEPSEEK_V3.absorbed_work(1, 2).flops - DEEPSEEK_V3.absorbed_work(1, 1).flops,
    ),
}
rows = []
for name, (size, flops) in ways.items():
    milliseconds = 1e3 * million * max(size / roof.bandwidth, flops / roof.peak_flops)
    bound = "memory" if flops / size < roof.ridge_point else "arithmetic"
    rows.append((name, f"{size:,}", f"{flops:,.0f}", f"{flops / size:,.0f}", f"{milliseconds:.2f} ms, {bound}"))
at_once = [2**k for k in range(11)]
lines = {"absorbed": DEEPSEEK_V3.absorbed_work, "expanded": DEEPSEEK_V3.expanded_work}
plot, axes = figure(width=8.0, height=3.2)
for (name, work), colour in zip(lines.items(), (palette.blue, palette.vermillion), strict=True):
    per_token = [work(queries, 131_072).flops / 131_072 / 1e6 for queries in at_once]
    axes.plot(at_once, per_token, "o-", color=colour, ms=3)
    axes.text(1200, per_token[-1], name, color=colour, va="center")
axes.set(
    xscale="log", yscale="log", xlim=(0.8, 4000), xlabel="new tokens of a sequence", ylabel="MFLOP per cached token"
)
axes.set_xticks(at_once[::2], [f"{queries:,}" for queries in at_once[::2]])
axes.minorticks_off()
with reveal("expand"):
    show.against_prediction("expand", round(queries_to_expand_for(DEEPSEEK_V3)), unit="tokens", source="counted")
    show.figure(plot, "both forms read the same latents; expanding pays once enough queries share it")
    show.table(
        rows,
        header=("one new token, 128 heads", "bytes", "FLOPs", "FLOP/byte", "per million cached tokens on an H100"),
        caption=f"Per cached token and layer; an H100's ridge point is {roof.ridge_point:.0f} FLOP/byte. Bounds, not measurements",
    )

# %% [markdown]
# Expanding costs latent · (key + value) = 512 · 256 multiply-adds per head and cached token, and saves 1,088 − 320 = 768
# of them per query: hence 512 · 256 / 768 = 171. Servers therefore expand in a prefill and absorb in decoding
# ([vLLM](https://docs.vllm.ai/en/v0.24.0/api/vllm/model_executor/layers/attention/mla_attention/) calls them the
# compute-friendly and the data-movement-friendly approach). Absorbed decoding does 4.3 times the arithmetic of GQA for
# 28% of the bytes, which brings it from far below an H100's ridge point close to it.
#
# Its weak point is tensor parallelism: all heads need the whole latent, so each GPU keeps a copy. Split over 8
# GPUs, 8 key-value heads take 512 bytes per GPU, token and layer, and the latent 1,152. So servers often
# split such attention by sequences instead ([SGLang: DP
# attention](https://docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide)).
#
# ## CUDA graphs
#
# A decode step of a large model is hundreds of kernels, in plain PyTorch more than a thousand, most of them short. The
# host has to launch each of them. Whenever a launch takes longer than the kernel before it, the GPU waits. A **CUDA
# graph** records the launches of a step once and replays all of them with one call. `DecodeGraphs` in
# `threeloops.product.decode` does this for 1, 2, 4, … sequences. It needs a GPU, so here we count only what there is to
# launch.

# %% tags=["demo"]
myth("dec-4")
predict("launches", "How many operators does PyTorch dispatch per layer in one decode step? Views are not counted.")

# %% tags=["demo"] jupyter={"source_hidden": true}


class Operators(TorchDispatchMode):
    """Counts operators that compute or copy; views move nothing and launch nothing."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if not function.is_view:
            self.names[function.overloadpacket.__name__] += 1
        return result


def operators_of(layers):
    plain = GPT(GPTConfig(256, layers, 4, 2, 64, 192, 64)).eval()
    cache = ContiguousCache(plain.config, 1, 32)
    with torch.inference_mode(False), torch.no_grad():
        cache.hidden(plain, torch.tensor([[1, 2, 3]]), torch.tensor([0]))
        with Operators() as counted:
            plain.head(cache.hidden(plain, torch.tensor([[4]]), torch.tensor([3])))
    return sum(counted.names.values())


per_layer = operators_of(3) - operators_of(2)
whole = operators_of(2) + 30 * per_layer
with reveal("launches"):
    show.against_prediction("launches", per_layer, source="counted here, plain PyTorch operators")
    show.table(
        [(f"{each} µs", f"{whole * each / 1e3:.1f} ms") for each in (2, 5, 10)],
        header=("per launch", f"host time of {whole:,} launches"),
        caption="A model of 32 layers, one sequence",
    )
audit(
    "dec-4",
    whole,
    "launches per step",
    "CPU",
    "needs a GPU",
    how="operators of a decode step with a contiguous cache were counted here for 2 and 3 layers and extended to 32. On an H100 the roofline of section 2 gives 5.1 ms for one sequence of 8,192 tokens with 16-bit weights, and 1.6 ms with 4-bit weights. At a few µs per launch, the host takes about as long as an H100 takes to read the weights, so whether a graph pays depends on the host, the batch and the bits per weight. A graph removes the cost of launches on the host, not the start-up of the kernels themselves, and tensor sizes must not change. Not measured on a GPU",
)

# %% [markdown]
# ## Compiled and exported
#
# `torch.compile` fuses elementwise operators and removes Python from a step. `torch.export` has another aim: it records
# a model as a graph with named inputs, which other runtimes load without the Python code. Such a graph has no state, so
# keys and values go in and come out.
#
# TorchScript (`torch.jit.script`) used to do that. It is deprecated, so a new service should not start from it.
#
# The next cell takes about a minute, most of it for the compiler.

# %% tags=["demo"]
myth("dec-3")
myth("code-5")
predict(
    "compiled",
    "How many times as fast as in eager mode is a compiled decode step of a small GPT on this CPU?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
small = GPT(GPTConfig(256, 2, 4, 2, 128, 384, 256)).eval().requires_grad_(False)
tokens = torch.randint(0, 256, (1, 33), generator=torch.Generator().manual_seed(0))
prefill, step = export_prefill(small).module(), export_decode(small)
with torch.no_grad():
    logits, past_keys, past_values = prefill(tokens[:, :-1])
    whole_pass = small(tokens)[:, -1]
    exported = step.module()
    by_export = exported(tokens[:, -1:], past_keys, past_values)[0]
difference = float((by_export - whole_pass).abs().max())
seconds, notes = {}, {}
cache = ContiguousCache(small.config, 1, 64)


def eager_step():
    with torch.no_grad():
        return small.head(cache.hidden(small, tokens[:, -1:], torch.tensor([32])))


seconds["eager"] = best_of(eager_step)
with torch.no_grad():
    seconds["exported, run by PyTorch"] = best_of(lambda: exported(tokens[:, -1:], past_keys, past_values))
    began = time.perf_counter()
    try:
        compiled = torch.compile(exported, dynamic=False)
        compiled(tokens[:, -1:], past_keys, past_values)
        took = time.perf_counter() - began
        seconds["exported, compiled"] = best_of(lambda: compiled(tokens[:, -1:], past_keys, past_values))
        notes["exported, compiled"] = f"compiled in {took:.0f} s"
    except Exception as error:
        print(f"torch.compile found no C++ compiler that works: {type(error).__name__}")
try:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        write_onnx(step, pathlib.Path(folder) / "decode.onnx")
        session = onnxruntime.InferenceSession(pathlib.Path(folder) / "decode.onnx")
    given = {"tokens": tokens[:, -1:].numpy(), "keys": past_keys.numpy(), "values": past_values.numpy()}
    seconds["ONNX Runtime"] = best_of(lambda: session.run(["logits"], given))
except ImportError:
    print("ONNX Runtime is not installed here, so its row is missing: pip install onnx onnxscript onnxruntime")
faster = {name: seconds["eager"] / each for name, each in seconds.items()}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.jit.script(torch.nn.Linear(2, 2))
deprecated = [str(each.message).split(". ")[0] for each in said if "deprecat" in str(each.message).lower()]
compiled_name = "exported, compiled" if "exported, compiled" in faster else "exported, run by PyTorch"
with reveal("compiled"):
    show.against_prediction("compiled", round(faster[compiled_name], 2), unit="×", source="measured here")
    show.table(
        [(name, f"{1e3 * each:.2f} ms", f"{faster[name]:.2f}×", notes.get(name, "")) for name, each in seconds.items()],
        header=("decode step, batch 1, 32 tokens of context", "time", "times as fast as eager", ""),
        caption="A GPT with 2 layers of width 128, measured on this machine",
    )
    show.busy_notice()
audit(
    "dec-3",
    round(faster[compiled_name], 2),
    "times as fast as eager",
    "CPU",
    "corrected",
    how=f"one decode step of a small GPT on this CPU: {', '.join(f'{name} {each:.2f}×' for name, each in faster.items())}. Compilation removes Python, launches and intermediate results. What share of a step they are depends on its size and on the machine, and a step that waits for weights gains almost nothing, so no single factor fits",
)
audit(
    "code-5",
    len(deprecated),
    "deprecation warning from torch.jit.script",
    "CPU",
    "corrected",
    how=f"PyTorch {torch.__version__.split('+')[0]} says: {deprecated[0] if deprecated else 'nothing'}. torch.export gives the same logits as the model; the largest difference is {difference:.0e} here",
)

# %% [markdown]
# ## GGUF files
#
# llama.cpp keeps a model in one file, GGUF: metadata such as the number of layers, then all tensors. `Q8_0` and `Q4_0`
# are formats like that of exercise 5, with groups of 32 and a 16-bit scale, so 8.5 and 4.5 bits per weight. One
# difference: the scale of `Q4_0` is the weight with the largest absolute value, divided by −8. Steps then run from −8
# to 7, so all 16 codes can occur, and that weight comes back exactly, up to the rounding of its scale.

# %% tags=["demo"]
myth("dec-5")

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.product.quantized.gguf import TensorType, export_gguf, load_gguf

rows = []
with tempfile.TemporaryDirectory() as folder:
    for type in (TensorType.F32, TensorType.F16, TensorType.Q8_0, TensorType.Q4_0):
        path = pathlib.Path(folder) / f"{type.name}.gguf"
        export_gguf(model, path, type)
        back = load_gguf(path)
        rows.append((type.name, f"{path.stat().st_size:,}", f"{perplexity(back, test, window=128).value:.3f}"))
show.table(
    rows, header=("type", "bytes of the file", "perplexity"), caption="Written, read back, and measured on unseen bytes"
)
audit(
    "dec-5",
    round(16 / 8.125, 2),
    "times smaller, int8 with a 16-bit scale per 128 weights",
    "model",
    "corrected",
    how=f"compared with 16 bits per weight. Only int4 comes near: with the same scales it is {16 / 4.125:.2f}× smaller. Compared with 32 bits, int8 is {32 / 8.125:.2f}× smaller; the claim does not name what it compares with. What is not quantized, such as the embedding, stays as large as it was",
)

# %% [markdown]
# ## Guesses from the prompt
#
# A draft need not be a model. Code, summaries and edits repeat parts of their prompt, so a good guess is whatever
# followed the last few tokens the last time they occurred, in the prompt or in the answer. Such **n-gram** drafts cost
# next to nothing. Greedy decoding gives the same tokens with them, as the cell below checks.

# %% tags=["demo"]
predict("lookup", "What percentage of such guesses is kept if the prompt repeats itself?", unit="%")

# %% tags=["demo"] jupyter={"source_hidden": true}
line = list(b"    parser.add_argument(")
prompts = {"repeats itself": tuple(line * 4), "does not": tuple(unseen[100:192].tolist())}
rows, kept = [], {}
for name, prompt in prompts.items():
    alone = generate(model, [prompt], Sampling(max_tokens=48))[0]
    runner = SpeculativeRunner(model, LookupDraft(), blocks=32, block_size=16)
    engine = Engine(runner, BlockManager(32, 16), Policy(guesses=4))
    request = Request("one", prompt, Sampling(max_tokens=48))
    engine.add(request)
    steps = 0
    while engine.requests:
        engine.step()
        steps += 1
    kept[name] = runner.acceptance
    rows.append((name, f"{runner.acceptance:.0%}", steps, "yes" if request.output == alone else "no"))
with reveal("lookup"):
    show.against_prediction("lookup", round(100 * kept["repeats itself"]), unit="%", source="measured here")
    show.table(
        rows,
        header=("prompt", "acceptance rate", "steps for 48 tokens", "same tokens"),
        caption="This small model soon repeats its own answer, so guesses are kept after either prompt",
    )


def draw_speedup(draft_percent, most):
    plot, axes = figure(width=8.0, height=2.8)
    guesses = range(1, most + 1)
    for acceptance, colour in ((0.9, palette.green), (0.7, palette.blue), (0.5, palette.vermillion)):
        speed = [expected_speedup(acceptance, each, draft_percent / 100) for each in guesses]
        axes.plot(guesses, speed, color=colour, marker="o", ms=3)
        axes.text(most + 0.2, speed[-1], f"{acceptance:.0%} accepted", color=colour, va="center")
    axes.axhline(1, color=palette.grey, lw=1, ls="--")
    axes.set(xlabel="guesses per step", ylabel="speed-up", xlim=(0.7, 1.2 * most), ylim=(0, None))
    axes.set_title(f"A draft step takes {draft_percent}% of a target step")
    return plot


explore(
    draw_speedup,
    labels={"draft_percent": "draft step (% of a target step)", "most": "most guesses per step"},
    draft_percent=[5, 0, 20, 50],
    most=(2, 16, 1, 10),
)

# %% [markdown]
# ## Guesses from the model's own features
#
# A separate draft has to understand the text by itself. The model has just done so. **EAGLE**
# ([2024](https://arxiv.org/abs/2401.15077)) and the multi-token prediction of
# [DeepSeek-V3](https://arxiv.org/abs/2412.19437) therefore let one extra layer read the model's *features*, the numbers
# that its head turns into logits. Features do not say which token was then drawn, so the layer reads its embedding as well.
# It makes the features of the next position, and the model's own head turns these into a guess. For a second guess, the
# layer reads its own features.
#
# *Worked example.* The text is `def f(` and the model draws `s`. The features at `(` say that arguments follow, `self` among
# them. Together with `s`, the layer guesses `e`.
#
# The library has such a layer for the small model of this lab, trained to imitate its features and logits. A guess
# from q is kept with probability Σ min(p, q), where p is the model's own distribution, so the acceptance can be computed
# instead of sampled.

# %% tags=["demo"]
myth("dec-8")
predict(
    "features",
    "What percentage of the extra layer's first guesses is kept, if a small model of its own reaches 76%?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.product.decode import expected_tokens, speculate
from threeloops.product.trained.feature_head import trained_feature_head

layer, draft = trained_feature_head(), trained("tiny_draft")
windows = test[: 16 * 128].view(16, 128)
with torch.no_grad():
    own, drafted = model(windows).softmax(-1), draft(windows).softmax(-1)
    kept_of = {"draft": float(torch.minimum(own, drafted).sum(-1).mean())}
kept_of |= {"first": layer.acceptance(model, windows), "second": layer.acceptance(model, windows, depth=2)}
sizes = {
    name: sum(p.numel() for p in part.parameters())
    for name, part in (("model", model), ("layer", layer), ("draft", draft))
}
prompt = tuple(unseen[100:192].tolist())
alone = generate(model, [prompt], Sampling(max_tokens=60))[0]
guessed = {count: speculate(model, layer, prompt, Sampling(max_tokens=60), count) for count in (1, 2, 4)}
assert all(result.tokens == alone for result in guessed.values())
with reveal("features"):
    show.against_prediction("features", round(100 * kept_of["first"]), unit="%", source="measured here, unseen text")
    show.table(
        [
            ("a model of its own", f"{sizes['draft']:,}", f"{kept_of['draft']:.0%}", f"{kept_of['draft']:.0%}"),
            ("an extra layer", f"{sizes['layer']:,}", f"{kept_of['first']:.0%}", f"{kept_of['second']:.0%}"),
        ],
        header=("draft", "parameters", "first guess", "second guess, if the first is kept"),
        caption=f"Expected acceptance at temperature 1 on {windows.numel():,} unseen bytes; the model has {sizes['model']:,} parameters",
    )
    show.table(
        [(count, result.passes, f"{result.acceptance:.0%}") for count, result in guessed.items()],
        header=("guesses per pass", "passes for 60 tokens", "accepted"),
        caption="Greedy decoding gives the same 60 tokens without the extra layer, but takes 59 passes after the one over the prompt",
    )
audit(
    "dec-8",
    round(expected_tokens(0.9, 1), 2),
    "tokens per pass, at most",
    "model",
    "holds",
    how=f"one guess that is kept with 85% to 90% gives {expected_tokens(0.85, 1):.2f} to {expected_tokens(0.9, 1):.2f} tokens per pass of the model. The published 1.8 times leaves up to 5% for the extra layer and the wider pass, which fits one layer beside 61. The report names neither batch nor hardware; a large batch that is limited by arithmetic would gain less",
)

# %% [markdown]
# The layer starts with more knowledge than a draft that reads the tokens alone. Its second guess reads features of its own
# making, and holds up because it was trained on those too. The price differs as well. Here the layer is three times as
# large as the plain draft and half as large as the model, which has only two layers. In DeepSeek-V3 it is one layer
# beside 61, and no second model needs a tokenizer, a cache and a place on the GPUs.
#
# ## Answers that follow a grammar
#
# To make an answer follow a JSON schema or a regular expression, the engine sets the logits of all forbidden next tokens
# to −∞. The rest is renormalised: each allowed token keeps its probability, divided by the sum of the allowed ones.
# Here a function's return type must be one of five.

# %% tags=["demo"]

from threeloops.product.decode import probabilities
from threeloops.product.decode.sampling import Adjuster
from threeloops.product.grammar import Grammars, grammar_of_choice

TYPES = ("int", "str", "bool", "None", "bytes")
signature = tuple(b"\ndef size(self) -> ")
follows = Sampling(max_tokens=8, temperature=1.0, grammar=grammar_of_choice(TYPES))
adjuster = Adjuster(Grammars([bytes([octet]) for octet in range(256)], ends=[0]))


def chances_of(text):
    """The probability of a text for the model alone, and with each step masked; and the largest error of a step."""
    request, alone, masked, error = Request(text, signature, follows), 1.0, 1.0, 0.0
    for token in text.encode():
        with torch.no_grad():
            logits = model(torch.tensor([[*signature, *request.output]]))[0, -1:].double()
        adjusted, _ = adjuster.adjusted(logits, {0: request})
        drawn_from, free = probabilities(adjusted, [follows])[0], logits[0].softmax(-1)
        written = text.encode()[: len(request.output)]
        allowed = sorted({each.encode()[len(written)] for each in TYPES if each.encode().startswith(written)})
        expected = torch.zeros_like(free)
        expected[allowed] = free[allowed] / free[allowed].sum()
        error = max(error, float((drawn_from - expected).abs().max()))
        alone, masked = alone * float(free[token]), masked * float(drawn_from[token])
        request.output.append(token)
    return alone, masked, error


shares = {text: chances_of(text) for text in TYPES}
together = sum(alone for alone, _, _ in shares.values())
print(f"largest error of a step's distribution: {max(error for *_, error in shares.values()):.0e}")
print(
    f"the model alone writes one of the five with {together:.1%}, and then {shares['None'][0] / together:.0%} are None"
)

# %% tags=["demo"]
predict("masked", "What percentage of the answers is None if each step is masked?", unit="%")

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("masked"):
    show.against_prediction("masked", round(100 * shares["None"][1]), unit="%", source="computed, not sampled")
    show.table(
        [
            (text, f"{alone:.2%}", f"{alone / together:.0%}", f"{masked:.0%}")
            for text, (alone, masked, _) in shares.items()
        ],
        header=("answer", "model alone", "given that it is one of the five", "each step masked"),
    )

# %% [markdown]
# Each step is exact, and the answers still differ from the model's. A mask looks one token ahead. So an `s` or an `i` has the
# probability of everything that the model would write after it, including words that are not allowed. After the `s` only
# `str` is left, and inherits all of that. [Grammar-aligned decoding](https://arxiv.org/abs/2405.21047) (2024) is about this difference. In
# practice: ask for the format in the prompt as well, so that the mask has little to remove.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("speculative decoding")
calibration()
