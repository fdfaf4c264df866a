from collections import OrderedDict


class Blocks:
    """For each block the set of names that hold it."""

    def __init__(self, count: int, size: int):
        self.size, self.count = size, count
        self.held = OrderedDict()  # block: names
        self.of = {}  # name: [blocks, tokens]

    def append(self, name, tokens):
        blocks, length = self.of.get(name, ([], 0))
        blocks = list(blocks)
        place, inside = divmod(length, self.size)
        copied = bool(inside) and len(self.held[blocks[place]]) > 1
        free = [block for block in range(self.count) if block not in self.held]
        end = (length + tokens + self.size - 1) // self.size
        wanted = end - len(blocks) + (1 if copied else 0)
        if wanted > len(free):
            raise OutOfBlocks(f"{wanted} of {len(free)}")
        copies = []
        if copied:
            new = free.pop(0)
            copies.append((blocks[place], new))
            self.held[blocks[place]].discard(name)
            self.held[new] = {name}
            blocks[place] = new
        while len(blocks) < end:
            new = free.pop(0)
            self.held[new] = {name}
            blocks.append(new)
        self.of[name] = [blocks, length + tokens]
        return copies

    def fork(self, name, new):
        blocks, length = self.of[name]
        for block in blocks:
            self.held[block].add(new)
        self.of[new] = [blocks[:], length]

    def free(self, name):
        blocks, _ = self.of.pop(name)
        for block in blocks:
            self.held[block].remove(name)
            if not self.held[block]:
                del self.held[block]

    def table(self, name):
        return self.of[name][0][:]

    def available(self):
        return self.count - len(self.held)
