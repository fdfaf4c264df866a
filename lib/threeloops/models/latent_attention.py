"""Multi-head latent attention (MLA): all heads' keys and values are products of one short vector per token.

Source: DeepSeek-AI 2024, "DeepSeek-V2" (arXiv:2405.04434), section 2.1 and appendix C. The cache holds that vector, the
latent, and one rotated key that all heads share. There are two ways to attend to it:

- expanded: multiply each latent by `latent_up`, which gives every head its keys and values, and attend as usual;
- absorbed: multiply each query by the keys' part of `latent_up` instead, so that it can be compared with the latents
  themselves. The weighted sum of latents is multiplied by the values' part once per query.

Both are the same product in another order. A rotation between the two factors would forbid the change of order, so
positions have dimensions of their own, which are not compressed ("decoupled" rotary positions).
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from threeloops.inner.costs import Work, require_positive
from threeloops.models.gpt_operations import Rotation, rotate
from threeloops.units import require_whole

__all__ = ["DEEPSEEK_V2", "DEEPSEEK_V3", "LatentAttention", "LatentShape", "queries_to_expand_for"]


@dataclass(frozen=True)
class LatentShape:
    """Sizes of latent attention. A head's query has `head_dim` dimensions of content and `rotary_dim` of position.

    Queries come from a vector of `query_rank` elements, and keys and values from one of `latent_dim`. Raises ValueError
    naming a size that is not a whole number of at least 1, or an odd `rotary_dim`.
    """

    layers: int
    width: int
    heads: int
    query_rank: int
    latent_dim: int
    head_dim: int
    rotary_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        require_whole(**vars(self))
        if self.rotary_dim % 2:
            raise ValueError(f"rotary_dim = {self.rotary_dim}: expected an even number; pairs of dimensions rotate")

    @property
    def cached(self) -> int:
        """Elements that one token leaves in the cache of one layer."""
        return self.latent_dim + self.rotary_dim

    @property
    def expanded(self) -> int:
        """Elements of all heads' keys and values of one token in one layer."""
        return self.heads * (self.head_dim + self.rotary_dim + self.value_dim)

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return (self.head_dim + self.rotary_dim) ** -0.5

    def absorbed_work(self, queries: int, context: int, bytes_per_element: float = 2) -> Work:
        """Return the work of `queries` queries in one layer that all see `context` cached tokens, in the absorbed form.

        It reads each latent and rotated key once, and `latent_up` once. FLOPs: 2·heads·latent_dim·(head_dim +
        value_dim) per query for the two products with `latent_up`, and 2·heads·(2·latent_dim + rotary_dim) per query
        and token. The softmax and the other projections, which both forms share, are left out.
        """
        require_positive(queries=queries, context=context, bytes_per_element=bytes_per_element)
        pairs = queries * context * self.heads
        flops = 2 * pairs * (self.cached + self.latent_dim) + 2 * queries * self._up
        return Work((context * self.cached + self._up) * bytes_per_element, flops)

    def expanded_work(self, queries: int, context: int, bytes_per_element: float = 2) -> Work:
        """Return the work of the same queries if every latent is first expanded to all heads' keys and values.

        It reads what the absorbed form reads; the expanded keys and values stay on the chip. FLOPs: 2·heads·latent_dim·
        (head_dim + value_dim) per token of the context, and 2·heads·(head_dim + rotary_dim + value_dim) per query and
        token.
        """
        require_positive(queries=queries, context=context, bytes_per_element=bytes_per_element)
        flops = 2 * queries * context * self.expanded + 2 * context * self._up
        return Work((context * self.cached + self._up) * bytes_per_element, flops)

    @property
    def _up(self) -> int:
        """Weights of `latent_up`."""
        return self.heads * self.latent_dim * (self.head_dim + self.value_dim)


DEEPSEEK_V2 = LatentShape(60, 5120, 128, 1536, 512, 128, 64, 128)
"""The sizes in section 3.1.2 of arXiv:2405.04434 (2024)."""
DEEPSEEK_V3 = LatentShape(61, 7168, 128, 1536, 512, 128, 64, 128)
"""The sizes in section 4.2 of arXiv:2412.19437 (2024)."""


def queries_to_expand_for(shape: LatentShape) -> float:
    """Return above how many queries on one context the expanded form does fewer FLOPs, for a long context.

    Per token of the context, q queries cost q·(2·latent_dim + rotary_dim) absorbed, and latent_dim·(head_dim +
    value_dim) + q·(head_dim + rotary_dim + value_dim) expanded, times 2·heads. Infinite if absorbed scores are no more
    work.
    """
    extra = 2 * shape.latent_dim - shape.head_dim - shape.value_dim
    return shape.latent_dim * (shape.head_dim + shape.value_dim) / extra if extra > 0 else float("inf")


class LatentAttention(nn.Module):
    """Causal latent attention, in either form. A cache is the tensor that the call before returned."""

    def __init__(self, shape: LatentShape, norm_epsilon: float = 1e-6):
        super().__init__()
        self.shape = shape
        content = shape.head_dim + shape.value_dim
        self.query_down = nn.Linear(shape.width, shape.query_rank, bias=False)
        self.query_norm = nn.RMSNorm(shape.query_rank, eps=norm_epsilon)
        self.query_up = nn.Linear(shape.query_rank, shape.heads * (shape.head_dim + shape.rotary_dim), bias=False)
        self.latent_down = nn.Linear(shape.width, shape.cached, bias=False)
        self.latent_norm = nn.RMSNorm(shape.latent_dim, eps=norm_epsilon)
        self.latent_up = nn.Linear(shape.latent_dim, shape.heads * content, bias=False)
        self.output = nn.Linear(shape.heads * shape.value_dim, shape.width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch new width"],
        rotation: Rotation,
        cache: Float[Tensor, "batch past cached"] | None = None,
        *,
        absorbed: bool = True,
    ) -> tuple[Float[Tensor, "batch new width"], Float[Tensor, "batch tokens cached"]]:
        """Return the layer's output for the new tokens, and the cache with these tokens appended.

        `rotation` holds cosines and sines of the new tokens' positions, (new, rotary_dim / 2). Each token sees itself
        and all tokens before it.
        """
        shape = self.shape
        heads = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (shape.heads, -1)).transpose(1, 2)
        query, query_position = heads.split((shape.head_dim, shape.rotary_dim), -1)
        query_position = rotate(query_position, rotation)
        latent, key_position = self.latent_down(x).split((shape.latent_dim, shape.rotary_dim), -1)
        new = torch.cat((self.latent_norm(latent), rotate(key_position, rotation)), -1)
        cache = new if cache is None else torch.cat((cache, new), 1)
        attend = self._absorbed if absorbed else self._expanded
        attended = attend(query, query_position, cache)  # (batch, heads, new, value_dim)
        return self.output(attended.transpose(1, 2).flatten(2)), cache

    def _absorbed(self, query: Tensor, query_position: Tensor, cache: Tensor) -> Tensor:
        keys_up, values_up = self._parts_of_latent_up()
        query = torch.einsum("bhqd,hdl->bhql", query, keys_up)
        latents = cache[..., : self.shape.latent_dim]
        weights = self._weights(torch.cat((query, query_position), -1) @ cache.mT[:, None])
        return torch.einsum("bhql,hvl->bhqv", weights @ latents[:, None], values_up)

    def _expanded(self, query: Tensor, query_position: Tensor, cache: Tensor) -> Tensor:
        keys_up, values_up = self._parts_of_latent_up()
        latents, key_position = cache.split((self.shape.latent_dim, self.shape.rotary_dim), -1)
        keys = torch.einsum("btl,hdl->bhtd", latents, keys_up)
        values = torch.einsum("btl,hvl->bhtv", latents, values_up)
        return self._weights(query @ keys.mT + query_position @ key_position.mT[:, None]) @ values

    def _parts_of_latent_up(self) -> tuple[Tensor, Tensor]:
        """Return its rows for keys, (heads, head_dim, latent_dim), and for values, (heads, value_dim, latent_dim)."""
        by_head = self.latent_up.weight.unflatten(0, (self.shape.heads, -1))
        keys_up, values_up = by_head.split((self.shape.head_dim, self.shape.value_dim), 1)
        return keys_up, values_up

    def _weights(self, scores: Tensor) -> Tensor:
        new, tokens = scores.shape[-2:]
        visible = torch.ones(new, tokens, dtype=torch.bool, device=scores.device).tril(tokens - new)
        return functional.softmax((scores * self.shape.scale).masked_fill(~visible, -torch.inf), -1)
