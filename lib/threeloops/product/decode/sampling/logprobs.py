"""Record the log-probabilities of tokens, for requests that ask for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from threeloops.product.request import Request, TokenLogprobs

__all__ = ["note_logprobs"]


def note_logprobs(logits: Tensor, requests: Sequence[Request], tokens: Sequence[int]) -> None:
    """Append the log-probabilities of a new token to each of `requests` that asks for them.

    `tokens` has the new token of each request. `logits`, (requests, vocabulary), are the model's, before any
    adjustment.
    """
    rows = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
    wide = torch.promote_types(logits.dtype, torch.float32)
    logprobs = logits[torch.tensor(rows, device=logits.device)].to(wide).log_softmax(-1)
    most = min(max(requests[row].sampling.logprobs or 0 for row in rows), logits.shape[-1])
    # A stable sort lists the first of equal tokens first, and temperature 0 takes the same one.
    values, places = logprobs.sort(descending=True, stable=True)
    likeliest = zip(places[:, :most].tolist(), values[:, :most].tolist(), strict=True)
    for own, row, (top, chances) in zip(logprobs, rows, likeliest, strict=True):
        count = requests[row].sampling.logprobs or 0
        found = tuple(zip(top[:count], chances[:count], strict=True))
        requests[row].logprobs.append(TokenLogprobs(own[tokens[row]].item(), found))
