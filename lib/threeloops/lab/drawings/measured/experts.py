"""Layers of experts, and the exchange of their tokens, measured by NVIDIA on eight GPUs of a node."""

from threeloops.hardware.measured import measured
from threeloops.lab.drawings.measured.series import Series, series

__all__ = ["exchange", "experts"]

_RANKS = 8


def experts(
    device: str, routing: str, *, width: int = 2048, inner: int = 768, top_k: int = 8, number: int = 128
) -> Series:
    """Return the times of the rank with most tokens, by the tokens of the whole layer, in bf16.

    `routing` is "balanced", or "power_law_1.01" or "power_law_1.2", with the exponent of the experts' popularity.
    """
    table = measured("moe").where(
        device=device, moe_dtype="bfloat16", hidden_size=width, inter_size=inner, topk=top_k, num_experts=number
    )
    table = table.where(moe_ep_size=_RANKS, distribution=routing)
    return series(table, table["num_tokens"])


def exchange(device: str, backend: str, phase: str, *, width: int = 7168, top_k: int = 8, number: int = 256) -> Series:
    """Return the times to bring each rank's tokens to their experts ("dispatch") or back ("combine").

    `backend` is "deepep_ht" for many tokens, or "deepep_ll" for few.
    """
    table = measured("moe_all_to_all").where(
        device=device, comm_backend=backend, phase=phase, hidden_size=width, topk=top_k, num_experts=number
    )
    return series(table.where(ep_size=_RANKS), table["num_tokens"])
