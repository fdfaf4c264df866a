"""The paged cache: rows of many sequences in one pass, each as if its sequence were alone."""

import pytest
import torch
from decoding import hidden_alone, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.inner.kernels import interpreter
from threeloops.product.batching.simulated.steps import padded_together
from threeloops.product.decode import PagedCache, Rows

EXACT = {"rtol": 1e-9, "atol": 1e-9}
MODELS = {kv_heads: random_model(kv_heads=kv_heads, heads=4) for kv_heads in (1, 2, 4)}
WINDOWS = {f"window of {window}": random_model(sliding_window=window) for window in (1, 2, 5, 16)}


def cache_of(model, blocks, block_size, **options):
    weight = model.head.weight
    return PagedCache(model.config, blocks, block_size, dtype=weight.dtype, device=weight.device, **options)


def tables_of(lengths, block_size, seed=0):
    """A block table for each length, all blocks in random order; and how many there are."""
    counts = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)).tolist()
    return [[order.pop() for _ in range(count)] for count in counts], sum(counts)


@torch.inference_mode()
def computed_in_steps(model, cache, sequences, tables, steps):
    """Each step takes so many tokens of each sequence; what the head reads, sequence by sequence."""
    done, found = [0] * len(sequences), [[] for _ in sequences]
    for counts in [*steps, [10**6] * len(sequences)]:
        chunks, owners = [], []
        for place, count in enumerate(counts):
            tokens = sequences[place][done[place] : done[place] + count]
            if tokens:
                chunks.append(Rows(tokens, done[place], tables[place]))
                owners.append(place)
                done[place] += len(tokens)
        if not chunks:
            continue
        rows = cache.hidden(model, chunks)
        for owner, part in zip(owners, rows.split([len(chunk.tokens) for chunk in chunks]), strict=True):
            found[owner].append(part)
    return [torch.cat(each) for each in found]


@settings(max_examples=40)
@given(st.data())
def test_rows_are_what_they_are_in_their_own_sequence(data):
    model = data.draw(st.sampled_from([*MODELS.values(), *WINDOWS.values()]), label="model")
    block_size = data.draw(st.sampled_from([1, 3, 8, 16]), label="block size")
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5), label="lengths")
    token = st.integers(0, model.config.vocabulary_size - 1)
    sequences = [data.draw(st.lists(token, min_size=length, max_size=length)) for length in lengths]
    count = st.sampled_from([0, 1, 1, 1, 2, 5, 17])
    steps = data.draw(st.lists(st.lists(count, min_size=len(lengths), max_size=len(lengths)), max_size=6))
    tables, blocks = tables_of(lengths, block_size)
    found = computed_in_steps(model, cache_of(model, blocks, block_size), sequences, tables, steps)
    for rows, tokens in zip(found, sequences, strict=True):
        torch.testing.assert_close(rows, hidden_alone(model, tokens), **EXACT)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), max_size=12), st.integers(1, 16), st.booleans())
def test_groups_have_equally_many_rows_and_about_as_many_keys(chunks, block_size, kernel):
    rows = [Rows([0] * count, start, range(1000)) for count, start in chunks]
    counts = [len(chunk.tokens) for chunk in rows]
    groups = padded_together(counts, [-(-chunk.end // block_size) for chunk in rows], unpadded=1 if kernel else 0)
    assert sorted(place for group in groups for place in group) == list(range(len(rows)))
    for group in groups:
        (count,) = {len(rows[place].tokens) for place in group}
        blocks = [-(-rows[place].end // block_size) for place in group]
        assert min(blocks) >= 0.75 * max(blocks) or (kernel and count == 1)
    if kernel:
        assert sum(len(rows[group[0]].tokens) == 1 for group in groups) <= 1


def test_sequences_may_share_the_blocks_of_a_prefix():
    model, prefix = MODELS[2], [4, 8, 15, 16]
    cache = cache_of(model, 4, 2)
    sequences, tables = [[*prefix, 23, 42], [*prefix, 7]], [[3, 1, 0], [3, 1, 2]]
    with torch.inference_mode():
        cache.hidden(model, [Rows(prefix, 0, tables[0])])
        rows = cache.hidden(model, [Rows([23, 42], 4, tables[0]), Rows([7], 4, tables[1])])
    torch.testing.assert_close(rows[:2], hidden_alone(model, sequences[0])[-2:], **EXACT)
    torch.testing.assert_close(rows[2], hidden_alone(model, sequences[1])[-1], **EXACT)


def test_a_copied_block_is_a_block_of_ones_own():
    model, cache = MODELS[2], cache_of(MODELS[2], 3, 4)
    with torch.inference_mode():
        cache.hidden(model, [Rows([4, 8], 0, [1])])
        cache.copy([(1, 2)])
        rows = cache.hidden(model, [Rows([15], 2, [1]), Rows([16], 2, [2])])
        rows = torch.cat([rows, cache.hidden(model, [Rows([23], 3, [1]), Rows([23], 3, [2])])])
    for place, tokens in enumerate(([4, 8, 15], [4, 8, 16], [4, 8, 15, 23], [4, 8, 16, 23])):
        torch.testing.assert_close(rows[place], hidden_alone(model, tokens)[-1], **EXACT)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("model", [MODELS[2], WINDOWS["window of 5"]], ids=["no window", "window of 5"])
def test_what_the_last_holder_left_reaches_nobody(block_size, model):
    """Not even if it is NaN, in the rest of a block, in blocks that are still to be filled, or in the padding."""
    cache = cache_of(model, 48 // block_size, block_size)
    cache._pool.fill_(torch.nan)
    sequences = [list(range(20)), [5, 6, 7]]
    blocks = iter(range(48 // block_size))
    tables = [[next(blocks) for _ in range(-(-(len(tokens) + 4) // block_size))] for tokens in sequences]
    for rows, tokens in zip(
        computed_in_steps(model, cache, sequences, tables, [[2, 1], [1, 1], [13, 1], [1]]), sequences, strict=True
    ):
        torch.testing.assert_close(rows, hidden_alone(model, tokens), **EXACT)


def test_forgotten_positions_are_zero_and_no_others():
    model, cache = MODELS[1], cache_of(MODELS[1], 4, 2)
    with torch.inference_mode():
        cache.hidden(model, [Rows(range(8), 0, [2, 0, 3, 1])])
        cache.forget([2, 0, 3, 1], 3, 6)
    empty = {slot for slot in range(8) if not cache._pool[:, slot].any()}
    assert empty == {1, 6, 7}, "position 3 is in block 0, positions 4 and 5 are block 3"


@pytest.mark.skipif(not interpreter.interpreted(), reason="here kernels are compiled for a GPU")
def test_the_kernel_and_pytorch_give_the_same():
    model = random_model(dtype=torch.float32, heads=4, kv_heads=2, width=64)
    sequences = [list(range(19)), [5, 6, 7], list(range(40, 4, -1))]
    tables, blocks = tables_of([len(tokens) for tokens in sequences], 8)
    steps = [[16, 1, 30], [1, 1, 1], [1, 1, 1]]
    by_kernel = computed_in_steps(model, cache_of(model, blocks, 8, kernel=True), sequences, tables, steps)
    by_copy = computed_in_steps(model, cache_of(model, blocks, 8, kernel=False), sequences, tables, steps)
    for one, other in zip(by_kernel, by_copy, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_only_the_blocks_that_a_window_reaches_are_read():
    model = WINDOWS["window of 5"]
    cache = cache_of(model, 16, 4)
    step = cache.prepare([Rows([1], 31, range(8)), Rows([1], 32, range(9))])
    assert [group.tables.tolist() for group in step.groups] == [[[6, 7], [7, 8]]], "positions 27 … 31 and 28 … 32"
    assert [group.tables.tolist() for group in cache.prepare([Rows([1], 2, [3])]).groups] == [[[3]]]


def test_a_window_that_no_sequence_outgrows_costs_nothing():
    model = random_model(sliding_window=128, max_sequence=128)
    (group,) = cache_of(model, 16, 4, kernel=True).prepare([Rows([1], 31, range(8))]).groups
    assert group.mask is None and group.tables.tolist() == [list(range(8))]


def test_the_kernel_is_refused_for_a_window():
    with pytest.raises(ValueError, match="sliding_window = 5: the paged-attention kernel reads all keys"):
        cache_of(WINDOWS["window of 5"], 16, 4, kernel=True)


def test_bytes_of_the_pool():
    model = MODELS[2]
    config = model.config
    per_token = 2 * config.layers * config.kv_heads * config.head_dim * 8
    assert cache_of(model, 10, 4).nbytes == 40 * per_token


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_on_a_gpu_the_kernel_is_used_and_right(dtype):
    model = random_model(dtype=torch.float32, heads=4, kv_heads=2, width=64).to("cuda", dtype)
    sequences = [list(range(19)), [5, 6, 7], list(range(40, 4, -1))]
    tables, blocks = tables_of([len(tokens) for tokens in sequences], 16)
    cache = cache_of(model, blocks, 16)
    assert cache.kernel
    found = computed_in_steps(model, cache, sequences, tables, [[16, 1, 30], [1, 1, 1]])
    by_torch = [hidden_alone(model, tokens) for tokens in sequences]
    exact = torch.cat([hidden_alone(model.to("cpu", torch.float64), tokens) for tokens in sequences])
    ours, theirs = (torch.cat(rows).double().cpu() - exact for rows in (found, by_torch))
    assert ours.square().mean().sqrt() < 2 * theirs.square().mean().sqrt() + 1e-5
