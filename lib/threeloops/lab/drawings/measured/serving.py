"""Times per output token of whole deployments, measured by NVIDIA."""

from threeloops.hardware.measured import measured
from threeloops.lab.drawings.measured.series import Series, source

__all__ = ["per_token"]


def per_token(
    device: str, prompt: int, answer: int, *, model: str = "meta-llama/Llama-3.1-8B-Instruct", engine: str = "trtllm"
) -> Series:
    """Return the seconds per output token in 16 bits on one GPU, by the requests that run at all times.

    Every request has a prompt and an answer of so many tokens. The sizes of the series are requests. Raises LookupError
    if it was not measured.
    """
    table = measured("serving").where(backend=engine, model_path=model, device=device, gemm_quant_mode="")
    table = table.where(tp_size=1, isl=prompt, osl=answer)
    tool = f"{engine} {table['backend_version'][0]}"
    return Series.of(table["batch_size"], table["silicon_tpot_ms"] / 1e3, source(device, tool))
