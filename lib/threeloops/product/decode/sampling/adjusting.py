"""Adjust the logits of a request before a token is chosen: apply its grammar, its biases and its penalties.

The order is that of vLLM. First, tokens that the grammar does not allow are excluded, and so are tokens that would end
a text that is still too short. Then biases are added, and then penalties are applied. The adjustments depend only on
the request's settings and tokens, so a preempted request continues with the same adjustments.
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
    """The state of a request between steps, which includes the first `taken` tokens of its output."""

    matcher: Any
    biases: tuple[Tensor, Tensor] | None  # tokens, and what is added to their logits
    in_prompt: Tensor | None = None  # (vocabulary,): whether a token occurs in the prompt
    counts: Tensor | None = None  # (vocabulary,): how often a token occurs in the output; both only for penalties
    taken: int = 0


class Adjuster:
    """Adjusts the logits of requests. `grammars`, for the model's vocabulary, lets requests have a grammar."""

    def __init__(self, grammars: Grammars | None = None) -> None:
        self._grammars = grammars
        self._states: WeakKeyDictionary[Request, _State] = WeakKeyDictionary()
        self._matchers: WeakKeyDictionary[Request, Any] = WeakKeyDictionary()
        """The matchers of requests that have been checked. Their grammars are not compiled again."""

    def check(self, request: Request, vocabulary: int) -> None:
        """Check that a request can be adjusted. Raises ValueError for a bad token in `logit_bias` or a bad grammar.

        The first check of a request compiles its grammar, which may take long. Another thread may make this check, so
        that later ones take no time.
        """
        for token, _ in request.sampling.logit_bias:
            if not 0 <= token < vocabulary:
                raise ValueError(f"logit_bias: token {token} is not in the model's vocabulary of {vocabulary} tokens")
        if request.sampling.grammar:
            if self._grammars is None:
                raise ValueError(
                    "grammar: this engine cannot follow grammars: pass `grammars=Grammars(…)`, with the bytes of each "
                    "token, to ModelRunner"
                )
            if request not in self._matchers:
                self._matchers[request] = self._grammars.matcher(request.sampling.grammar)

    def adjusted(self, logits: Tensor, rows: Mapping[int, Request]) -> tuple[Tensor, dict[int, Exception]]:
        """Return an adjusted copy of `logits`, (rows, vocabulary), in float32 or wider.

        `rows` maps the number of a row to its request. The second result has the error of each row that could not be
        adjusted.
        """
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
        sampling = request.sampling
        state = self._state(request, logits)
        if state.matcher is not None:
            logits.masked_fill_(~_allowed(state.matcher, logits), -torch.inf)
        if len(request.output) < sampling.min_tokens and sampling.stop:
            logits[sorted(token for token in sampling.stop if 0 <= token < len(logits))] = -torch.inf
        if state.biases is not None:
            logits.index_add_(0, *state.biases)
        if state.in_prompt is None or state.counts is None:
            return
        if (penalty := sampling.repetition_penalty) != 1:
            punished = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits.copy_(torch.where(state.in_prompt | (state.counts > 0), punished, logits))
        if sampling.frequency_penalty:
            logits -= sampling.frequency_penalty * state.counts
        if sampling.presence_penalty:
            logits -= sampling.presence_penalty * (state.counts > 0).to(logits.dtype)

    def _state(self, request: Request, like: Tensor) -> _State:
        """Return the state of a request, updated with its new tokens."""
        if (state := self._states.get(request)) is None:
            self._states[request] = state = self._begun(request, like)
        new = request.output[state.taken :]
        if new:
            if state.counts is not None:
                tokens = torch.tensor(new, device=like.device)
                state.counts.index_add_(0, tokens, torch.ones(len(new), dtype=like.dtype, device=like.device))
            if state.matcher is not None:
                _consume(state.matcher, new)
            state.taken += len(new)
        return state

    def _begun(self, request: Request, like: Tensor) -> _State:
        sampling = request.sampling
        matcher = self._matchers.pop(request, None)
        if matcher is None and sampling.grammar and self._grammars is not None:
            matcher = self._grammars.matcher(sampling.grammar)
        biases = None
        if sampling.logit_bias:
            tokens, values = zip(*sampling.logit_bias, strict=True)
            biases = torch.tensor(tokens, device=like.device), like.new_tensor(values)
        state = _State(matcher, biases)
        if sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty:
            state.in_prompt = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
            state.in_prompt[list(request.prompt)] = True
            state.counts = torch.zeros_like(like)
        return state


def _consume(matcher: Any, tokens: Sequence[int]) -> None:
    matcher.consume_tokens(list(tokens))
    check_progress(matcher)


def _allowed(matcher: Any, like: Tensor) -> Tensor:
    """Return whether each token may come next, as (vocabulary,)."""
    mask = matcher.compute_bitmask()
    check_progress(matcher)
    octets = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
    bits = (octets[:, None] >> torch.arange(8)) & 1
    allowed = torch.zeros(like.shape, dtype=torch.bool)
    count = min(bits.numel(), len(allowed))
    allowed[:count] = bits.flatten()[:count].bool()
    return allowed.to(like.device)
