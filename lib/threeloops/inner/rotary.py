"""Rotary position embeddings: each pair of dimensions of a head is rotated by an angle that grows with the position.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). Dimension i is paired with
i + head_dim / 2, as in GPT-NeoX and Llama.
"""

import torch


def rotary_tables(
    sequence: int, head_dim: int, base: float = 10000.0, device: torch.device | str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of position · base^(−2i / head_dim): (sequence, head_dim / 2) float32 each."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float64, device=device), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """(…, sequence, head_dim) rotated by the angles, in float32 or wider, rounded to their dtype; contiguous."""
    first, second = heads.chunk(2, dim=-1)
    rotated = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    # cat leaves heads of two dimensions in channels-last order, for which PyTorch's attention stores all scores.
    return rotated.to(heads.dtype).contiguous()
