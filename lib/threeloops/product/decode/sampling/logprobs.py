"""Record the log-probabilities of tokens, for requests that ask for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from threeloops.product.request import Request, TokenLogprobs

__all__ = ["note_logprobs", "note_prompt_logprobs"]

_ROWS = 64
"""How many rows of logits are widened at a time, which bounds the memory that a long prompt takes."""


def note_logprobs(logits: Tensor, requests: Sequence[Request], tokens: Sequence[int]) -> None:
    """Append the log-probabilities of a new token to each of `requests` that asks for them.

    `tokens` has the new token of each request. `logits`, (requests, vocabulary), are the model's, before any
    adjustment.
    """
    asked = {row: request.sampling.logprobs for row, request in enumerate(requests)}
    rows = [row for row, count in asked.items() if count is not None]
    chosen = logits[torch.tensor(rows, device=logits.device)]
    token_logprobs = _logprobs(chosen, [tokens[row] for row in rows], [asked[row] or 0 for row in rows])
    for row, logprobs in zip(rows, token_logprobs, strict=True):
        requests[row].logprobs.append(logprobs)


def note_prompt_logprobs(logits: Tensor, request: Request) -> None:
    """Append the log-probabilities of the next tokens of the prompt of a request.

    Each row of `logits`, (tokens, vocabulary), was computed at the position before such a token.
    """
    first = len(request.prompt_logprobs) + 1  # the first token of a prompt follows nothing, so it has none
    for at in range(0, len(logits), _ROWS):
        rows = logits[at : at + _ROWS]
        tokens = request.prompt[first + at : first + at + len(rows)]
        request.prompt_logprobs += _logprobs(rows, tokens, [request.sampling.prompt_logprobs or 0] * len(rows))


def _logprobs(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probability of each row's token, and those of the row's `counts` likeliest tokens.

    Tokens of equal probability are listed in the order of their numbers, and temperature 0 takes the first of them.
    """
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    most = min(max(counts), logprobs.shape[-1])
    least = logprobs.topk(most).values[:, -1].tolist() if most else []
    token_logprobs = []
    for row, (logprob, count) in enumerate(zip(own, counts, strict=True)):
        top: list[tuple[int, float]] = []
        if count:
            places = (logprobs[row] >= least[row]).nonzero()[:, 0]  # more than `most` if the last ones are equal
            values, order = logprobs[row, places].sort(descending=True, stable=True)
            top = list(zip(places[order][:count].tolist(), values[:count].tolist(), strict=True))
        token_logprobs.append(TokenLogprobs(logprob, tuple(top)))
    return token_logprobs
