"""What a request changes about its logits before a token is chosen: a grammar, a bias, penalties.

In vLLM's order: tokens that the grammar does not allow are ruled out, and tokens that end the text while it is too
short; then biases are added, and penalties taken. All of it depends only on the request's own tokens, so a preempted
request goes on as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from threeloops.product.grammar import Grammars, check_progress
from threeloops.product.request import Request

__all__ = ["Adjuster"]

_NOT_FINITE = (
    "its penalties and biases leave no token that can be chosen, or logits that are not finite: bring them closer to "
    "0, and repetition_penalty closer to 1"
)


@dataclass(eq=False)
class _State:
    """What is remembered of a request from step to step: its tokens up to `taken` of the output."""

    in_prompt: Tensor  # (vocabulary,): whether a token stands in the prompt
    counts: Tensor  # (vocabulary,): how often it stands in the output
    matcher: Any
    taken: int = 0


class Adjuster:
    """Adjusts logits. `grammars` are those of the model's vocabulary, if requests may have any."""

    def __init__(self, grammars: Grammars | None = None) -> None:
        self._grammars = grammars
        self._states: WeakKeyDictionary[Request, _State] = WeakKeyDictionary()

    def check(self, request: Request, vocabulary: int) -> None:
        """Raises ValueError for a request whose adjustments cannot be made."""
        for token, _ in request.sampling.logit_bias:
            if not 0 <= token < vocabulary:
                raise ValueError(f"logit_bias: token {token} is not one of the model's, 0 to {vocabulary - 1}")
        if request.sampling.grammar:
            if self._grammars is None:
                raise ValueError("grammar: this engine was given no `grammars`, the texts of its tokens")
            self._grammars.check(request.sampling.grammar)

    def adjusted(self, logits: Tensor, rows: Mapping[int, Request]) -> tuple[Tensor, dict[int, Exception]]:
        """A copy of `logits`, (rows, vocabulary), in float32 or wider, in which each of `rows` is as its request wants
        it; and the rows that cannot be, with the reason."""
        adjusted = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        failures: dict[int, Exception] = {}
        for row, request in rows.items():
            try:
                self._adjust(adjusted[row], request)
            except Exception as error:  # whatever it is, other requests go on
                failures[row] = error
        fine = adjusted.amax(-1).isfinite().tolist()  # not with a NaN, with infinity, or if no token is left
        for row in rows:
            if not fine[row]:
                failures.setdefault(row, ArithmeticError(_NOT_FINITE))
        return adjusted, failures

    def _adjust(self, logits: Tensor, request: Request) -> None:
        sampling, state = request.sampling, self._state(request, logits)
        if state.matcher is not None:
            logits.masked_fill_(~_allowed(state.matcher, logits), -torch.inf)
        if len(request.output) < sampling.min_tokens and sampling.stop:
            logits[sorted(token for token in sampling.stop if 0 <= token < len(logits))] = -torch.inf
        for token, bias in sampling.logit_bias:
            logits[token] += bias
        if (penalty := sampling.repetition_penalty) != 1:
            punished = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits.copy_(torch.where(state.in_prompt | (state.counts > 0), punished, logits))
        if sampling.frequency_penalty:
            logits -= sampling.frequency_penalty * state.counts
        if sampling.presence_penalty:
            logits -= sampling.presence_penalty * (state.counts > 0).to(logits.dtype)

    def _state(self, request: Request, like: Tensor) -> _State:
        """What is remembered, brought up to date."""
        if (state := self._states.get(request)) is None:
            grammar = request.sampling.grammar
            matcher = self._grammars.matcher(grammar) if grammar and self._grammars is not None else None
            in_prompt = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
            in_prompt[list(request.prompt)] = True
            self._states[request] = state = _State(in_prompt, torch.zeros_like(like), matcher)
        new = request.output[state.taken :]
        if new:
            tokens = torch.tensor(new, device=like.device)
            state.counts.index_add_(0, tokens, torch.ones(len(new), dtype=like.dtype, device=like.device))
            if state.matcher is not None:
                _consume(state.matcher, new)
            state.taken += len(new)
        return state


def _consume(matcher: Any, tokens: Sequence[int]) -> None:
    matcher.consume_tokens(list(tokens))
    check_progress(matcher)


def _allowed(matcher: Any, like: Tensor) -> Tensor:
    """(vocabulary,): whether a token may come next."""
    mask = matcher.compute_bitmask()
    check_progress(matcher)
    octets = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
    bits = (octets[:, None] >> torch.arange(8)) & 1
    allowed = torch.zeros(like.shape, dtype=torch.bool)
    count = min(bits.numel(), len(allowed))
    allowed[:count] = bits.flatten()[:count].bool()
    return allowed.to(like.device)
