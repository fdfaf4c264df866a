"""Times per output token of whole deployments, measured by NVIDIA, and what a model of steps makes of them."""

from collections.abc import Callable

import numpy as np

from threeloops.hardware.measured import measured
from threeloops.lab.drawings.measured.series import Series, source
from threeloops.product.batching import StepShape

__all__ = ["all_reduce_seconds", "modelled_per_token", "per_token"]

_EXCHANGES = "trtllm/1.3.0rc20"


def per_token(
    device: str,
    prompt: int,
    answer: int,
    *,
    gpus: int = 1,
    model: str = "meta-llama/Llama-3.1-8B-Instruct",
    engine: str = "trtllm",
) -> Series:
    """Return the seconds per output token in 16 bits on one replica, by the requests that run at all times.

    The replica has `gpus` GPUs with tensor parallelism. Every request has a prompt and an answer of so many tokens. The
    sizes of the series are requests. Raises LookupError if it was not measured.
    """
    table = measured("serving").where(backend=engine, model_path=model, device=device, gemm_quant_mode="")
    table = table.where(tp_size=gpus, isl=prompt, osl=answer)
    place = device if gpus == 1 else f"{gpus} × {device}"
    tool = f"{engine} {table['backend_version'][0]}"
    return Series.of(table["batch_size"], table["silicon_tpot_ms"] / 1e3, source(place, tool))


def modelled_per_token(
    cost: Callable[[StepShape], float],
    requests: int,
    prompt: int,
    answer: int,
    gpus: int = 1,
    exchange: Callable[[int], float] = lambda tokens: 0.0,
) -> float:
    """Return the seconds per output token by the cost of a step, of which each of `gpus` does an equal part.

    All requests are in the middle of their answers. While one of them writes its answer, each of the others passes its
    prompt once, in one step. `exchange` has the seconds that a step with so many tokens adds.
    """
    decode = (prompt + answer // 2 - 1, 1, True)
    steps = StepShape((decode,) * requests), StepShape((*(decode,) * (requests - 1), (0, prompt, True)))
    alone, with_prompt = (cost(step) / gpus + exchange(step.tokens) for step in steps)
    return alone + (requests - 1) / answer * (with_prompt - alone)


def all_reduce_seconds(device: str, gpus: int, size: float) -> float:
    """Return the seconds of TensorRT-LLM's own all-reduce of `size` bytes, between measured sizes on a line of logs."""
    table = measured("custom_all_reduce").where(device=device, tool=_EXCHANGES, num_gpus=gpus)
    order = np.argsort(table["bytes"])
    sizes, seconds = (np.log(table[column][order]) for column in ("bytes", "seconds"))
    return float(np.exp(np.interp(np.log(size), sizes, seconds)))
