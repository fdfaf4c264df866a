"""An executor without a model, which knows what every slot of the cache must hold, and fails the test if it does not.

A slot holds the salt and all tokens up to its own, as a real key depends on all of them. The next token is a hash of
the tokens before it, so a request has one right output, which `continuation` gives without any engine.
"""

import hashlib
from array import array

from threeloops.product.request import Batch, Chunk, Request

NOT_FINITE = "not finite"


def continuation(prompt: tuple[int, ...], count: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """The right output: `count` tokens, or fewer if one of them is in `stop`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(hashlib.blake2b(array("q", tokens).tobytes(), digest_size=1).digest()[0] % 3)
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class Ledger:
    """The next chunk of a request whose id is in `fails` gives an error; if `broken` is set, every step raises it.

    `accept(request, guesses)` says how many guesses of a draft are right: the others stay in the cache as garbage.
    """

    def __init__(self, blocks: int, block_size: int, accept=lambda request, guesses: 0):
        self.block_size, self.accept = block_size, accept
        self.slots: list[object] = [None] * (blocks * block_size)
        self.fails: set[str] = set()
        self.broken: BaseException | None = None
        self.batches: list[Batch] = []

    def check(self, request: Request) -> None:
        if -1 in request.prompt:
            raise ValueError(f"request {request.id!r}: token -1 is unknown")

    def receive(self, request: Request) -> None:
        """Write the prompt after its cached tokens, as if another engine had computed it."""
        written: set[int] = set()
        for position in range(request.cached, len(request.prompt)):
            self._write(request, position, self._right(request, position), written)

    def require_prompt(self, request: Request) -> None:
        """Check that the blocks of a request still hold its prompt."""
        for position in range(len(request.prompt)):
            assert self.slots[self._slot(request, position)] == self._right(request, position), request.id

    def execute(self, batch: Batch):
        self.batches.append(batch)
        for source, destination in batch.copies:
            self._fill(destination, self._held(source))
        for chunk in batch.chunks:
            for block in chunk.request.block_table:
                if self.broken is not None:
                    self._fill(block, [NOT_FINITE] * self.block_size)
        if self.broken is not None:
            raise self.broken
        written: set[int] = set()
        return [self._run(chunk, written) for chunk in batch.chunks]

    def _run(self, chunk: Chunk, written: set[int]):
        request, end = chunk.request, chunk.start + chunk.count
        assert request.computed == chunk.start and 1 <= chunk.count <= request.uncomputed
        for position in range(chunk.start, end):
            self._write(request, position, self._right(request, position), written)
        for position in range(chunk.start):
            found = self.slots[self._slot(request, position)]
            assert found == self._right(request, position), f"{request.id}, position {position}: the cache has {found}"
        if request.id in self.fails:
            self.fails.discard(request.id)
            for position in range(chunk.start, end):
                self.slots[self._slot(request, position)] = NOT_FINITE
            return ArithmeticError(f"{request.id} is not finite")
        if end < request.length:
            assert not chunk.guesses
            return ()
        most = len(request.prompt) + request.sampling.max_tokens - 1
        assert request.length + chunk.guesses <= most, f"{request.id}: a guess that can never be followed by a token"
        right = self.accept(request, chunk.guesses)
        new = continuation(request.tokens, right + 1)
        for guess in range(chunk.guesses):
            kept = (request.cache_salt, (*request.tokens, *new[: guess + 1])) if guess < right else "rejected"
            self._write(request, request.length + guess, kept, written)
        return new

    def _right(self, request: Request, position: int):
        return request.cache_salt, request.tokens[: position + 1]

    def _write(self, request: Request, position: int, what: object, written: set[int]) -> None:
        slot = self._slot(request, position)
        if position % self.block_size == 0:  # what the last holder left is cleared: a masked NaN is still a NaN
            self._fill(slot // self.block_size, [None] * self.block_size)
        assert slot not in written, f"two chunks write slot {slot} in one step"
        written.add(slot)
        self.slots[slot] = what

    def _slot(self, request: Request, position: int) -> int:
        return request.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _held(self, block: int) -> list[object]:
        return self.slots[block * self.block_size : (block + 1) * self.block_size]

    def _fill(self, block: int, held: list[object]) -> None:
        self.slots[block * self.block_size : (block + 1) * self.block_size] = held
