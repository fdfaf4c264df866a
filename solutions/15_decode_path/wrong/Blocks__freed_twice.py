# expect: expected   KeyError
# fails: tables, sharing, edges
class Blocks:
    """Gives, shares and takes back blocks of a cache."""

    def __init__(self, count: int, size: int):
        self.size = size
        self.unused = list(range(count))
        self.holders = [0] * count
        self.tables, self.lengths = {}, {}

    def append(self, name: str, tokens: int) -> list[tuple[int, int]]:
        """Grow a sequence; the copies (source, target) to make first."""
        table, length = self.tables.get(name, []), self.lengths.get(name, 0)
        shared = length % self.size > 0 and self.holders[table[-1]] > 1
        needed = -(-(length + tokens) // self.size) - len(table)
        if needed + shared > len(self.unused):
            raise OutOfBlocks(f"{needed + shared} blocks needed, {len(self.unused)} are free")
        fresh = [self.unused.pop() for _ in range(needed + shared)]
        for block in fresh:
            self.holders[block] = 1
        copies = []
        if shared:
            copies = [(table[-1], fresh[0])]
            self.holders[table[-1]] -= 1
            table = table[:-1]
        self.tables[name], self.lengths[name] = table + fresh, length + tokens
        return copies

    def fork(self, name: str, new: str) -> None:
        """A second sequence with the same tokens in the same blocks."""
        for block in self.tables[name]:
            self.holders[block] += 1
        self.tables[new], self.lengths[new] = list(self.tables[name]), self.lengths[name]

    def free(self, name: str) -> None:
        """Forget a sequence."""
        for block in self.tables[name]:
            self.holders[block] -= 1
            if self.holders[block] <= 0:
                self.unused.append(block)

    def table(self, name: str) -> list[int]:
        """The blocks of a sequence, in the order of its tokens."""
        return list(self.tables[name])

    def available(self) -> int:
        """How many blocks are free."""
        return len(self.unused)
