"""llama.cpp in this process: a GGUF file is served, asked for probabilities, and closed with its last reference.

>>> largest_difference(served(path), model, prompt)
"""

import json
import urllib.request

import pytest
import torch

__all__ = ["ask", "largest_difference", "served"]


def served(path, context=128):
    """llama.cpp's server with one thread, and keys and values in float32, so that it differs by rounding only."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp's wheel is not installed: pip install xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.port = context, 1, 1, 0
    params.warmup, params.verbosity = False, 0
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    # Its loop has begun once this is answered. A server that is closed before never ends (xllamacpp 2026.10).
    server.handle_completions({"prompt": [0], "max_tokens": 1})
    return server


def ask(server, path, **body):
    """What its HTTP interface answers."""
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@torch.no_grad()
def largest_difference(server, model, prompt, tokens=3):
    """Between our log-probabilities and llama.cpp's, of the whole vocabulary, for some greedy tokens after a prompt."""
    size = model.config.vocabulary_size
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": size,
            "n_probs": size,
            "ignore_eos": False,
        }
    )
    steps = answer["choices"][0]["logprobs"]["content"]
    assert steps and all(len(step["top_logprobs"]) == size for step in steps)
    largest, read = 0.0, list(prompt)
    for step in steps:
        ours = model(torch.tensor([read]))[0, -1].double().log_softmax(-1)
        for each in step["top_logprobs"]:
            largest = max(largest, abs(ours[each["id"]].item() - each["logprob"]))
        read.append(step["id"])
    return largest
