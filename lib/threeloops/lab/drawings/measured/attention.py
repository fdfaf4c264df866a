"""Attention as inference engines run it, measured by NVIDIA: whole prompts, and one query per sequence."""

from threeloops.hardware.measured import measured
from threeloops.lab.drawings.measured.series import Series, series

__all__ = ["decode", "latent_decode", "prefill"]


def prefill(device: str, *, heads: int = 32, kv_heads: int = 8, head_dim: int = 128) -> Series:
    """Return the times of causal attention over one prompt, by its tokens. They include the write into the cache."""
    table = measured("attention_prefill").where(
        device=device, batch_size=1, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim
    )
    return series(table, table["isl"])


def decode(device: str, batch: int, *, heads: int = 32, kv_heads: int = 8, head_dim: int = 128) -> Series:
    """Return the times of one query per sequence, by the tokens that each of `batch` sequences has in the cache."""
    table = measured("attention_decode").where(
        device=device, batch_size=batch, num_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim
    )
    return series(table, table["step"] + table["isl"])


def latent_decode(device: str, batch: int, *, heads: int = 128) -> Series:
    """Return the times of multi-head latent attention with DeepSeek-V3's cache, by tokens per sequence."""
    table = measured("mla_decode").where(device=device, batch_size=batch, num_heads=heads)
    return series(table, table["step"] + table["isl"])
