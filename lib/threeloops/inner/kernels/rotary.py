"""Rotary position embeddings: each pair of dimensions of a head is turned by an angle that grows with the position.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). Dimension i is paired with
i + head_dim / 2, as in GPT-NeoX and Llama.
"""

import torch


def rotary_tables(sequence: int, head_dim: int, base: float = 10000.0, device: torch.device | str = "cpu") -> tuple:
    """Cosines and sines of position · base^(−2i / head_dim): (sequence, head_dim / 2) float32 each."""
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angle = torch.arange(sequence, dtype=torch.float64, device=device)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """(…, sequence, head_dim), each pair of dimensions i and i + head_dim / 2 turned by its angle."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(heads.dtype)
