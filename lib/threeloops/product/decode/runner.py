"""Run the steps of a scheduler on a model: rows go in, and one new token per chunk comes out."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from threeloops.models.gpt import GPT
from threeloops.product.decode.flat import flattened
from threeloops.product.decode.graphs import DecodeGraphs
from threeloops.product.decode.paged import PagedCache, Rows
from threeloops.product.decode.sampling import Adjuster, choose, note_logprobs, note_prompt_logprobs
from threeloops.product.grammar import Grammars
from threeloops.product.request import Batch, Chunk, Request

__all__ = ["ModelRunner", "NotFinite"]


class NotFinite(ArithmeticError):
    """The model gave numbers that are not finite for a request."""


class ModelRunner:
    """A model with its paged cache, on the device and in the dtype of the model's weights. `graphs`: whether steps in
    which everybody decodes are replayed from CUDA graphs, on a GPU. `grammars`: for requests that have one.
    """

    def __init__(
        self, model: GPT, blocks: int, block_size: int, *, graphs: bool = False, grammars: Grammars | None = None
    ):
        weight = model.head.weight
        self.model = flattened(model)
        self.cache = PagedCache(model.config, blocks, block_size, dtype=weight.dtype, device=weight.device)
        self._graphs = DecodeGraphs(model, self.cache) if graphs else None
        self._adjuster = Adjuster(grammars)

    def check(self, request: Request) -> None:
        """Raise ValueError for a request that the model cannot compute.

        This is checked before the request joins a batch, because it would fail all requests of the batch.
        """
        config = self.model.config
        for place, token in enumerate(request.prompt):
            if not isinstance(token, int) or not 0 <= token < config.vocabulary_size:
                raise ValueError(
                    f"request {request.id!r}: token {place} of the prompt is {token!r}; expected a whole number from 0 "
                    f"to {config.vocabulary_size - 1}: encode the prompt with the tokenizer of this model"
                )
        longest = len(request.prompt) + request.sampling.max_tokens - 1  # the last token is never fed back
        if longest > config.max_sequence:
            raise ValueError(
                f"request {request.id!r}: {len(request.prompt)} tokens of prompt and max_tokens = "
                f"{request.sampling.max_tokens} need {longest} positions; the model has max_sequence = "
                f"{config.max_sequence}: shorten the prompt, or lower max_tokens"
            )
        if request.sampling.is_adjusted:
            self._adjuster.check(request, config.vocabulary_size)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> list[Sequence[int] | Exception]:
        """Return for each chunk its new tokens, or the error that ends its request.

        A chunk that does not sample has no new tokens.
        """
        self.cache.copy(batch.copies)
        logits, finite = self.logits(batch.chunks)
        requests = [chunk.request for chunk in batch.chunks if chunk.samples]
        samplings = [request.sampling for request in requests]
        positions = [request.length for request in requests]
        adjusted = logits
        failures = dict[int, Exception]()
        if any(sampling.is_adjusted for sampling in samplings):
            rows = {row: request for row, request in enumerate(requests) if request.sampling.is_adjusted}
            adjusted, failures = self._adjuster.adjusted(logits, rows)
        tokens = choose(adjusted, samplings, positions).tolist()
        if any(sampling.logprobs is not None for sampling in samplings):
            note_logprobs(logits, requests, tokens)
        of_rows = iter([failures.get(row, (token,)) for row, token in enumerate(tokens)] if failures else zip(tokens))
        results: list[Sequence[int] | Exception] = [next(of_rows) if chunk.samples else () for chunk in batch.chunks]
        for place, chunk in enumerate(batch.chunks):
            if not finite[place]:
                results[place] = self.error(chunk)
        return results

    def logits(
        self, chunks: Sequence[Chunk], guesses: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, Sequence[bool]]:
        """Run the chunks, each followed by its guesses.

        Returns the logits of the last row of every chunk that samples and of all rows of its guesses, (rows,
        vocabulary). Also returns, for each chunk, whether all of its numbers are finite. If a request lacks
        log-probabilities of its prompt, those of this chunk are added to it.
        """
        rows: list[Rows] = []
        wanted: list[int] = []
        of_prompts: list[tuple[Request, range]] = []
        end = 0
        for place, chunk in enumerate(chunks):
            request = chunk.request
            guessed = guesses[place] if guesses else ()
            tokens = request.tokens_from(request.computed, chunk.count)
            rows.append(Rows([*tokens, *guessed], request.computed, request.block_table))
            end += len(rows[-1].tokens)
            if chunk.samples:
                wanted += range(end - len(guessed) - 1, end)
            if request.lacks_prompt_logprobs:
                before = end - len(rows[-1].tokens) - request.computed  # the row of position 0
                done = len(request.prompt_logprobs)
                most = len(request.prompt) - 1
                if prompt_rows := range(before + done, before + min(chunk.start + chunk.count, most)):
                    of_prompts.append((request, prompt_rows))
        run = self._graphs.hidden if self._graphs and end == len(rows) else self._hidden
        hidden = run(rows)
        sampled = len(wanted)
        for _, prompt_rows in of_prompts:
            wanted += prompt_rows
        every = sampled == len(wanted) == len(hidden)
        logits = self.model.head(hidden if every else hidden[torch.tensor(wanted, device=hidden.device).long()])
        sizes = [len(prompt_rows) for _, prompt_rows in of_prompts]
        for (request, _), of_request in zip(of_prompts, logits[sampled:].split(sizes), strict=True):
            note_prompt_logprobs(of_request, request)
        # If a number is not finite, the sum is not finite. A sum may also overflow, so then every number is checked.
        # Sums of 16-bit logits would often overflow in their own dtype. A hidden number that is not finite makes every
        # logit of its row not finite too.
        total = logits.sum(dtype=torch.float32)
        if math.isfinite(total if every else total + hidden.sum(dtype=torch.float32)):
            return logits[:sampled], [True] * len(chunks)
        # Also of rows that give no token: what they leave in the cache would be found by others with the same prefix.
        fine = hidden.isfinite().all(-1)
        fine[torch.tensor(wanted, device=hidden.device).long()] &= logits.isfinite().all(-1)
        return logits[:sampled], [bool(part.all()) for part in fine.split([len(part.tokens) for part in rows])]

    def error(self, chunk: Chunk) -> NotFinite:
        first = chunk.request.computed
        last = chunk.request.computed + chunk.count - 1
        return NotFinite(
            f"request {chunk.request.id!r}: tokens {first} to {last} give numbers that are not finite; look for "
            f"overflow in the weights or in {self.model.head.weight.dtype}"
        )

    def _hidden(self, rows: Sequence[Rows]) -> Tensor:
        return self.cache.hidden(self.model, rows)
