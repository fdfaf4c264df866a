"""Memory of the cache in blocks, as an operating system keeps pages: Kwon et al. 2023, "Efficient Memory Management for
Large Language Model Serving with PagedAttention".

A sequence has a block table, the list of the blocks that hold its tokens in order, so no memory has to be contiguous
and at most the last block is partly empty. A block can be in several tables. It is freed when no table has it any more.
A sequence that writes into a shared block gets a copy first. A full block can be found again by its key (see
`prefix_cache.py`). When it is freed, it goes to the end of the queue of free blocks, and can be taken back until
another sequence gets it. So the prefix cache costs no memory of its own.
"""

from collections import OrderedDict
from collections.abc import Iterable

from threeloops.units import require_whole

__all__ = ["BlockManager", "OutOfBlocks"]


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class BlockManager:
    """Gives, shares and takes back blocks. It holds no keys and values: a block is a number.

    Raises ValueError if a size is not a whole number of at least 1, and names the size.
    """

    def __init__(self, blocks: int, block_size: int):
        require_whole(blocks=blocks, block_size=block_size)
        self.blocks = blocks
        self.block_size = block_size
        self._references = [0] * blocks
        self._free = OrderedDict.fromkeys(range(blocks))  # taken from the front, given back to the end
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that no table holds, including those that the prefix cache could still find."""
        return len(self._free)

    def needed(self, table: list[int], tokens: int, *, written: int | None = None) -> int:
        """The number of blocks that `table` still needs to hold `tokens` tokens, and to be written from position
        `written` on (by default its end)."""
        return self._missing(table, tokens) + (self._shared(table, written) is not None)

    def grow(self, table: list[int], tokens: int, *, written: int | None = None) -> list[tuple[int, int]]:
        """Let `table` hold `tokens` tokens, the first `written` of which stay as they are.

        Returns the copies (source, destination) to make before the write: at most one, of a block that is shared and
        begins before `written`. Raises OutOfBlocks, and changes nothing, if there are too few free blocks.
        """
        if (needed := self.needed(table, tokens, written=written)) > self.free:
            raise OutOfBlocks(
                f"{tokens} tokens need {needed} more blocks of {self.block_size}; {self.free} of {self.blocks} are "
                "free: preempt a request, or give the cache more blocks"
            )
        copies = []
        if (place := self._shared(table, written)) is not None:
            copies.append((table[place], fresh := self._take()))
            self._release(table[place])
            table[place] = fresh
        table.extend(self._take() for _ in range(self._missing(table, tokens)))
        return copies

    def fork(self, table: list[int]) -> list[int]:
        """A second table of the same blocks: nothing is copied until one of the two writes."""
        for block in table:
            self._hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        """Take all blocks of `table` back and empty it. The last block is freed first, so the prefix cache forgets the
        beginning of a sequence last."""
        while table:
            self._release(table.pop())

    def name(self, block: int, key: bytes) -> None:
        """Let a held block be found by `key`. If another block has the key already, that block keeps it."""
        if key not in self._block_of and block not in self._key_of:
            self._key_of[block] = key
            self._block_of[key] = block

    def find(self, keys: list[bytes]) -> list[int]:
        """The blocks of the longest run of keys, from the first, that are still here. They are not yet held."""
        blocks = []
        for key in keys:
            if (block := self._block_of.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def forget(self, table: Iterable[int]) -> None:
        """Remove these blocks from the prefix cache, because their contents are wrong."""
        for block in table:
            if (key := self._key_of.pop(block, None)) is not None:
                del self._block_of[key]

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raises AssertionError unless exactly the blocks of `tables` are held, and every block is either held or
        free."""
        held = [0] * self.blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._references, "the counts of references are not those of the tables"
        assert {block for block, count in enumerate(held) if not count} == set(self._free), (
            "a block leaked, or is free and held"
        )
        assert {key: block for block, key in self._key_of.items()} == self._block_of, "keys and blocks disagree"

    def _missing(self, table: list[int], tokens: int) -> int:
        return max(0, -(-tokens // self.block_size) - len(table))

    def _shared(self, table: list[int], written: int | None) -> int | None:
        """Place in the table of the partly written block, if somebody else holds it too."""
        if written is None or written % self.block_size == 0:
            return None
        place = written // self.block_size
        return place if place < len(table) and self._references[table[place]] > 1 else None

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        if (key := self._key_of.pop(block, None)) is not None:
            del self._block_of[key]
        self._references[block] = 1
        return block

    def _hold(self, block: int) -> None:
        if not self._references[block]:
            del self._free[block]
        self._references[block] += 1

    def _release(self, block: int) -> None:
        if not self._references[block]:
            raise ValueError(f"block {block} is free already: it was released twice")
        self._references[block] -= 1
        if not self._references[block]:
            self._free[block] = None
