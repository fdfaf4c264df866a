class Blocks:
    """No counts at all: what is free or shared is looked up in the tables."""

    def __init__(self, count: int, size: int):
        self._count, self._size, self._sequences = count, size, {}

    def append(self, name, tokens):
        table, length = self._sequences.get(name, ((), 0))
        after = length + tokens
        table = list(table)
        copies, free = [], self._free()
        if length % self._size and sum(table[-1] in other for other, _ in self._sequences.values()) > 1:
            if not free:
                raise OutOfBlocks("no block for the copy")
            copies = [(table[-1], free[-1])]
            table[-1] = free.pop()
        for _ in range(len(table) * self._size, after, self._size):
            if not free:
                raise OutOfBlocks(f"no block for {after} tokens")
            table.append(free.pop())
        self._sequences[name] = (tuple(table), after)
        return copies

    def fork(self, name, new):
        self._sequences[new] = self._sequences[name]

    def free(self, name):
        del self._sequences[name]

    def table(self, name):
        return list(self._sequences[name][0])

    def available(self):
        return len(self._free())

    def _free(self):
        held = {block for table, _ in self._sequences.values() for block in table}
        return [block for block in range(self._count) if block not in held]
