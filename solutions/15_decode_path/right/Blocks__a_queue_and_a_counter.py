from collections import Counter, deque
from math import ceil


class Blocks:
    """A queue of free blocks and a Counter of references; tables and lengths are separate dictionaries."""

    def __init__(self, count: int, size: int):
        self.queue, self.uses, self.size = deque(range(count)), Counter(), size
        self.blocks, self.tokens = {}, {}

    def _take(self):
        block = self.queue.popleft()
        self.uses[block] += 1
        return block

    def _drop(self, block):
        self.uses[block] -= 1
        if self.uses[block] == 0:
            self.queue.append(block)

    def append(self, name, tokens):
        old = self.tokens.get(name, 0)
        blocks = self.blocks.get(name, [])
        more = ceil((old + tokens) / self.size) - ceil(old / self.size)
        writes_shared = old % self.size != 0 and self.uses[blocks[-1]] >= 2
        if len(self.queue) < more + writes_shared:
            raise OutOfBlocks("too few")
        copies = []
        if writes_shared:
            source, target = blocks.pop(), self._take()
            self._drop(source)
            blocks.append(target)
            copies.append((source, target))
        self.blocks[name] = blocks + [self._take() for _ in range(more)]
        self.tokens[name] = old + tokens
        return copies

    def fork(self, name, new):
        self.blocks[new] = self.blocks[name].copy()
        self.tokens[new] = self.tokens[name]
        self.uses.update(self.blocks[new])

    def free(self, name):
        for block in self.blocks.pop(name):
            self._drop(block)
        self.tokens.pop(name)

    def table(self, name):
        return self.blocks[name].copy()

    def available(self):
        return len(self.queue)
