"""The travel of a cache: worked by hand, against a formula that simulates nothing, and between ranks of the cluster."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.disaggregated import CacheShape, ComputedChunk, Handover, Link, Part, send, travel
from threeloops.simulation.link import Server
from threeloops.training.cluster import Cluster, compute, uniform

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
FOUR = CacheShape(4, 2.0)
STEP = ComputedChunk(0.0, 4.0, tokens=10)  # a second and 20 bytes per layer


def handover(way="layers", bandwidth=10.0, latency=0.5, shape=FOUR, **options):
    return Handover(Link(latency, bandwidth), shape, way, **options)


def test_grouped_queries_keep_a_key_and_a_value_for_each_head_of_keys():
    assert CacheShape.of(LLAMA_8B) == CacheShape(32, 4096)
    assert CacheShape.of(LLAMA_8B).token_bytes == 131_072
    assert CacheShape.of(LLAMA_8B, bytes_per_element=1).token_bytes == 65_536


def test_latent_attention_keeps_one_vector_per_layer():
    assert CacheShape(61, 2 * (512 + 64)).token_bytes == 70_272


@pytest.mark.parametrize(
    ("way", "bandwidth", "exposed"),
    [
        ("whole", 10.0, 8.5),  # 80 bytes at 10 per second, and the latency
        ("chunks", 10.0, 8.5),
        ("layers", 10.0, 5.5),  # leave at 1, 3, 5 and 7, two seconds each: the link never waits
        ("whole", 40.0, 2.5),
        ("layers", 40.0, 1.0),  # half a second each, less than a layer takes: only the last is exposed
    ],
)
def test_layers_travel_while_the_next_ones_are_computed(way, bandwidth, exposed):
    sent = travel([STEP], handover(way, bandwidth))
    assert (sent.computed, sent.exposed, sent.bytes) == (4.0, exposed, 80)
    assert sent.messages == (4 if way == "layers" else 1)


def test_a_message_costs_its_sender_the_overhead():
    assert travel([STEP], handover("layers", 40.0, overhead=1.0)).exposed == 3.5  # 1 to 2.5, 4, 5.5 and 7
    assert travel([STEP], handover("whole", 40.0, overhead=1.0)).exposed == 3.5
    assert travel([STEP], handover("layers", 40.0, overhead=1.0, layers_per_message=2)).exposed == 2.5


def test_the_last_message_has_the_layers_that_are_left():
    way = handover(shape=CacheShape(5, 3.0), layers_per_message=2)
    assert way.parts(ComputedChunk(10.0, 20.0, 7)) == [Part(14.0, 42), Part(18.0, 42), Part(20.0, 21)]


def test_a_cached_prefix_leaves_at_once_and_in_one_message():
    cached, computed = ComputedChunk(2.0, 2.0, 5), ComputedChunk(2.0, 6.0, 10)
    sent = travel([cached, computed], handover(bandwidth=80.0, latency=0.0))
    assert (sent.messages, sent.bytes, sent.exposed) == (5, 120, 0.25)
    assert travel([cached, computed], handover("whole", 80.0, 0.0)).exposed == 1.5


def test_chunks_travel_while_the_next_chunk_is_computed():
    chunks = [ComputedChunk(0, 4, 10), ComputedChunk(4, 8, 10), ComputedChunk(9, 10, 1)]
    assert travel(chunks, handover("chunks", 20.0)).arrival == 12.9  # 80 bytes leave at 4 and at 8, and 8 at 12
    assert travel(chunks, handover("chunks", 80.0)).arrival == pytest.approx(10.6)


def test_a_link_that_is_busy_with_something_else_is_awaited():
    port = Server(free_at=7.0)
    assert travel([STEP], handover("whole"), port).arrival == 15.5 and port.free_at == 15.0


def test_both_ends_must_be_free():
    ports = [Server(3.0), Server(5.0)]
    assert send(Part(1.0, 20), handover(), ports) == 7.5 and [port.free_at for port in ports] == [7.0, 7.0]
    assert send(Part(1.0, 20), handover(), ports[:1]) == 9.5 and ports[1].free_at == 7.0


steps = st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 3), st.integers(1, 50)), min_size=1, max_size=5)


@given(
    steps=steps, layers=st.integers(1, 7), grouped=st.integers(1, 4), bandwidth=st.floats(1, 500),
    latency=st.floats(0, 2), overhead=st.floats(0, 1), way=st.sampled_from(["whole", "chunks", "layers"]),
)  # fmt: skip
def test_the_arrival_is_the_longest_chain_of_messages(steps, layers, grouped, bandwidth, latency, overhead, way):
    """From each message on, the link may be busy without a pause: arrival = α + max over k of (ready + all after k)."""
    chunks, now = [], 0.0
    for pause, seconds, tokens in steps:
        chunks.append(ComputedChunk(now + pause, now + pause + seconds, tokens))
        now = chunks[-1].end
    shape = CacheShape(layers, 3.0)
    kind = handover(way, bandwidth, latency, shape, overhead=overhead, layers_per_message=grouped)
    sent = travel(chunks, kind)
    messages = []
    for chunk in chunks:
        layer = (chunk.end - chunk.start) / layers
        if way == "layers":
            ends = sorted({*range(grouped, layers, grouped), layers})
            sizes = [end - before for before, end in zip([0, *ends], ends, strict=False)]
            messages += [
                (chunk.start + end * layer, size * chunk.tokens * 3.0) for end, size in zip(ends, sizes, strict=True)
            ]
        else:
            messages.append((chunk.end, layers * chunk.tokens * 3.0))
    if way == "whole":
        messages = [(now, sum(size for _, size in messages))]
    chains = [
        ready + sum(overhead + size / bandwidth for _, size in messages[number:])
        for number, (ready, _) in enumerate(messages)
    ]
    assert sent.arrival == pytest.approx(max(chains) + latency)
    assert sent.bytes == pytest.approx(sum(chunk.tokens for chunk in chunks) * shape.token_bytes)
    assert sent.messages == len(messages)


@given(steps=steps, layers=st.integers(1, 9), bandwidth=st.floats(1, 500))
def test_without_overhead_smaller_messages_never_arrive_later(steps, layers, bandwidth):
    chunks, now = [], 0.0
    for pause, seconds, tokens in steps:
        chunks.append(ComputedChunk(now + pause, now + pause + seconds, tokens))
        now = chunks[-1].end
    ways = [handover(way, bandwidth, shape=CacheShape(layers, 3.0)) for way in ("layers", "chunks", "whole")]
    layered, chunked, whole = (travel(chunks, way).arrival for way in ways)
    assert layered <= chunked + 1e-9 and chunked <= whole + 1e-9


def hand_over(layers, seconds, elements, together):
    """Rank 0 computes layers and sends them to rank 1, `together` at a time, in messages of float32."""
    ends = [*range(together, layers, together), layers]
    sizes = [elements * (end - before) for before, end in zip([0, *ends], ends, strict=False)]
    if dist.get_rank():
        handles = [dist.irecv(torch.empty(size), 0) for size in sizes]
    else:
        handles = []
        for layer in range(1, layers + 1):
            compute(seconds)
            if layer in ends:
                handles.append(dist.isend(torch.ones(sizes[ends.index(layer)]), 1))
    for handle in handles:
        handle.wait()


@pytest.mark.parametrize("bandwidth", [1e6, 5e7])
@pytest.mark.parametrize("together", [1, 3, 7])
def test_the_cluster_moves_a_cache_in_the_same_time(bandwidth, together):
    """Its ranks are processes that send real tensors, and its router knows nothing of caches."""
    layers, seconds, tokens = 7, 2e-3, 33
    shape = CacheShape(layers, 4.0 * 12)
    run = Cluster(uniform(2, 1e-4, bandwidth)).run(hand_over, layers, seconds, tokens * 12, together)
    kind = Handover(Link(1e-4, bandwidth), shape, layers_per_message=together)
    sent = travel([ComputedChunk(0.0, layers * seconds, tokens)], kind)
    assert run.seconds == pytest.approx(sent.arrival, rel=1e-9)
    assert run.bytes[0][1] == sent.bytes == tokens * shape.token_bytes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CacheShape(0, 2), "layers = 0"),
        (lambda: CacheShape(4, 0), "layer_bytes = 0"),
        (lambda: ComputedChunk(0, 1, 0), "tokens = 0"),
        (lambda: ComputedChunk(2, 1, 5), "not before the start"),
        (lambda: handover("by hand"), "way = 'by hand': expected 'whole', 'chunks' or 'layers'"),
        (lambda: handover(overhead=-1.0), "overhead = -1.0"),
        (lambda: handover(layers_per_message=0), "layers_per_message = 0"),
        (lambda: travel([], handover()), "a prompt without chunks"),
        (lambda: travel([STEP, STEP], handover()), "begins before"),
    ],
)
def test_what_makes_no_sense_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
