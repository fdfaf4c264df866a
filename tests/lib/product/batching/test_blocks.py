"""The block manager, driven at random beside a plain account of who holds what."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from threeloops.product.batching import BlockManager, OutOfBlocks


class Blocks(RuleBasedStateMachine):
    """Each table has beside it what its positions hold. A model of memory checks that writes reach nobody else."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 4))
    def begin(self, blocks, size):
        self.manager, self.size, self.count = BlockManager(blocks, size), size, blocks
        self.memory = [None] * (blocks * size)
        self.tables, self.written, self.named = [], [], {}
        self.serial = 0

    def slot(self, table, position):
        return table[position // self.size] * self.size + position % self.size

    @rule(tokens=st.integers(1, 9))
    def join(self, tokens):
        self.tables.append([])
        self.written.append([])
        self.write(len(self.tables) - 1, tokens)
        if not self.tables[-1]:
            self.tables.pop(), self.written.pop()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=st.integers(1, 5))
    def grow(self, data, tokens):
        self.write(data.draw(st.integers(0, len(self.tables) - 1)), tokens)

    def write(self, which, tokens):
        table, own = self.tables[which], self.written[which]
        start, end = len(own), len(own) + tokens
        before, free = list(table), self.manager.free
        needed = self.manager.needed(table, end, written=start)
        try:
            copies = self.manager.grow(table, end, written=start)
        except OutOfBlocks as error:
            assert needed > free and table == before and self.manager.free == free, "nothing half done"
            assert str(needed) in str(error) and str(free) in str(error)
            return
        assert free - self.manager.free == needed and len(copies) <= 1
        assert len(table) == -(-end // self.size)
        for source, destination in copies:
            self.memory[destination * self.size : (destination + 1) * self.size] = self.memory[
                source * self.size : (source + 1) * self.size
            ]
        others = {block for place, other in enumerate(self.tables) if place != which for block in other}
        for position in range(start, end):
            assert table[position // self.size] not in others, "somebody else would read what is written"
            self.serial += 1
            self.memory[self.slot(table, position)] = self.serial
            own.append(self.serial)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        which = data.draw(st.integers(0, len(self.tables) - 1))
        free = self.manager.free
        self.tables.append(self.manager.fork(self.tables[which]))
        self.written.append(list(self.written[which]))
        assert self.manager.free == free, "a fork takes no block"

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data):
        which = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(which), self.written.pop(which)
        self.manager.release(table)
        assert table == []

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def name_and_find(self, data):
        """Full blocks are found by what they hold, until they are given to somebody else."""
        which = data.draw(st.integers(0, len(self.tables) - 1))
        table, own = self.tables[which], self.written[which]
        keys = [repr(own[: (i + 1) * self.size]).encode() for i in range(len(own) // self.size)]
        for block, key in zip(table, keys, strict=False):
            self.manager.name(block, key)
        self.named.update(zip(keys, (own[: (i + 1) * self.size] for i in range(len(keys))), strict=True))
        for block, key in zip(self.manager.find(keys), keys, strict=False):
            held = self.named[key][-self.size :]
            assert self.memory[block * self.size : (block + 1) * self.size] == held

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def take_a_prefix(self, data):
        key = data.draw(st.sampled_from(sorted(self.named)))
        tokens = self.named[key]
        keys = [repr(tokens[: (i + 1) * self.size]).encode() for i in range(len(tokens) // self.size)]
        found = self.manager.find(keys)
        if found:
            self.tables.append(self.manager.fork(found))
            self.written.append(tokens[: len(found) * self.size])

    @invariant()
    def everybody_reads_what_they_wrote(self):
        for table, own in zip(getattr(self, "tables", ()), getattr(self, "written", ()), strict=True):
            assert [self.memory[self.slot(table, position)] for position in range(len(own))] == own

    @invariant()
    def nothing_leaks(self):
        if hasattr(self, "manager"):
            self.manager.check_integrity(self.tables)

    def teardown(self):
        if hasattr(self, "manager"):
            for table in self.tables:
                self.manager.release(table)
            assert self.manager.free == self.count


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_block_that_is_released_twice_is_refused():
    manager, table = BlockManager(4, 2), []
    manager.grow(table, 3)
    twice = list(table)
    manager.release(table)
    with pytest.raises(ValueError, match=f"block {twice[-1]} is free already: it was released twice"):
        manager.release(twice)


@pytest.mark.parametrize(
    ("blocks", "size", "name"), [(0, 1, "blocks = 0"), (1, 0, "block_size = 0"), (True, 1, "True")]
)
def test_sizes_that_are_refused(blocks, size, name):
    with pytest.raises(ValueError, match=name):
        BlockManager(blocks, size)


@pytest.mark.parametrize("holders", [2, 3])
def test_who_writes_into_a_shared_block_gets_a_copy_and_the_last_holder_keeps_it(holders):
    manager, table = BlockManager(8, 2), []
    assert manager.grow(table, 3, written=0) == []
    forks = [manager.fork(table) for _ in range(holders - 1)]
    for fork in forks:
        shared = fork[1]
        assert manager.needed(fork, 4, written=3) == 1
        assert manager.grow(fork, 4, written=3) == [(shared, fork[1])] and fork[1] != shared
    assert manager.needed(table, 4, written=3) == 0 and manager.grow(table, 4, written=3) == []
    assert len({each[1] for each in (table, *forks)}) == holders and len({each[0] for each in (table, *forks)}) == 1


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning():
    manager, table = BlockManager(4, 1), []
    manager.grow(table, 4)
    keys = [bytes([i]) for i in range(4)]
    for block, key in zip(table, keys, strict=True):
        manager.name(block, key)
    manager.release(table)
    manager.grow(other := [], 2)
    assert len(manager.find(keys)) == 2 and len(other) == 2
