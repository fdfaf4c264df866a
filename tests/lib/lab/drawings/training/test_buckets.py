"""Buckets of gradients: the model against the virtual cluster, and the drawing against the model."""

import math

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.lab.drawings import Layer, draw_buckets, fill_buckets
from threeloops.lab.widgets import style
from threeloops.training.cluster import Cluster, compute, now, uniform

EIGHT = [Layer(f"layer {n}", 2e-4, 1 << 18) for n in range(8)]
UNEVEN = [Layer(f"layer {n}", 1e-4 * (1 + n % 3), 4096 * (1 + 37 * n % 11)) for n in range(9)]
LINK = {"ranks": 4, "latency": 1e-5, "bandwidth": 1e9}
SIZES = [0, 1, 20_000, 250_000, 1 << 19, 1_000_000, math.inf]


def backward_passes(models, sizes):
    """On a rank: the seconds of each model's backward pass with each bucket size, by plain torch.distributed."""
    import torch
    import torch.distributed as dist

    found = []
    for layers in models:
        for size in sizes:
            begin, pending, held = now(), [], 0
            for left, (_, seconds, count) in zip(range(len(layers) - 1, -1, -1), reversed(layers), strict=True):
                compute(seconds)
                held += count
                if held >= size or not left:
                    pending.append(dist.all_reduce(torch.zeros(held // 4), async_op=True))
                    held = 0
            for work in pending:
                work.wait()
            found.append(now() - begin)
    return found


@pytest.fixture(scope="module")
def measured():
    run = Cluster(uniform(4, LINK["latency"], LINK["bandwidth"])).run(backward_passes, [EIGHT, UNEVEN], SIZES)
    assert all(result == pytest.approx(run.results[0], rel=1e-12) for result in run.results)
    return dict(zip([(m, s) for m in ("eight", "uneven") for s in SIZES], run.results[0], strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "layers"), [("eight", EIGHT), ("uneven", UNEVEN)])
def test_the_model_is_what_the_virtual_cluster_takes(measured, name, layers, size):
    assert fill_buckets(layers, size, **LINK).seconds == pytest.approx(measured[name, size], rel=1e-11)


@pytest.mark.parametrize(("size", "milliseconds"), [(1_000_000, 4.8657), (500_000, 4.5857), (250_000, 4.6257)])
def test_torchs_ddp_takes_as_long_with_its_forward_pass(size, milliseconds):
    """What DDP of torch 2.13 took on the virtual cluster in its third step, 8 layers of 0.1 ms forward."""
    assert 8e-4 + fill_buckets(EIGHT, size, **LINK).seconds == pytest.approx(1e-3 * milliseconds, abs=1e-7)


@pytest.mark.parametrize("size", SIZES)
def test_each_layer_is_in_one_bucket_in_the_order_of_the_backward_pass(size):
    overlap = fill_buckets(UNEVEN, size, **LINK)
    assert [name for bucket in overlap.buckets for name in bucket.layers] == [f"layer {n}" for n in range(8, -1, -1)]
    layers, done = {layer.name: layer for layer in UNEVEN}, 0.0
    for bucket in overlap.buckets:
        done += sum(layers[name].seconds for name in bucket.layers)
        held = [layers[name].bytes for name in bucket.layers]
        assert bucket.bytes == sum(held) and bucket.ready == pytest.approx(done, rel=1e-12)
        assert sum(held[:-1]) < size or len(held) == 1, "it was full before its last layer"
    assert all(bucket.bytes >= size for bucket in overlap.buckets[:-1])
    assert overlap.backward == pytest.approx(sum(layer.seconds for layer in UNEVEN))


def test_closed_forms_of_the_ends():
    one = fill_buckets(EIGHT, math.inf, **LINK)
    assert one.seconds == pytest.approx(8 * 2e-4 + 6 * (1e-5 + (2 << 20) / 4e9), rel=1e-12)
    assert one.exposed == one.communication
    alone = fill_buckets(EIGHT, 0, ranks=1, latency=1e-5, bandwidth=1e9)
    assert alone.communication == alone.exposed == 0.0 and alone.seconds == pytest.approx(alone.backward)
    slow = fill_buckets(EIGHT, 0, ranks=2, latency=1.0, bandwidth=1e9)
    assert slow.seconds == pytest.approx(2e-4 + 8 * (2.0 + (1 << 18) / 1e9), rel=1e-12)
    fast = fill_buckets(EIGHT, 0, ranks=4, latency=1e-6, bandwidth=1e12)
    assert len(fast.buckets) == 8 and fast.exposed == pytest.approx(6 * (1e-6 + (1 << 18) / 4e12), rel=1e-9)


def bars_of(figure):
    """(colour, row, start, end)"""
    found = []
    for bars in figure.axes[0].collections:
        if type(bars) is PolyCollection:
            (left, low), (right, high) = (getattr(bars.get_paths()[0].vertices, end)(axis=0) for end in ("min", "max"))
            found.append((to_hex(bars.get_facecolor()[0]), round((low + high) / 2, 6), left, right))
    return found


@pytest.mark.parametrize("size", [0, 20_000, 500_000, math.inf])
@pytest.mark.parametrize("layers", [EIGHT, UNEVEN], ids=["eight", "uneven"])
def test_hidden_and_exposed_parts_have_two_colours_and_the_times_of_the_model(layers, size):
    overlap = fill_buckets(layers, size, **LINK)
    bars = bars_of(draw_buckets(overlap))
    top = sorted((start, end) for colour, _, start, end in bars if colour == palette.sky)
    assert [end - start for start, end in top] == pytest.approx([layer.seconds for layer in reversed(layers)])
    hidden = [(start, end) for colour, _, start, end in bars if colour == palette.green]
    exposed = [(start, end) for colour, _, start, end in bars if colour == palette.vermillion]
    assert len(top) + len(hidden) + len(exposed) == len(bars)
    assert all(end <= overlap.backward for _, end in hidden) and all(a >= overlap.backward for a, _ in exposed)
    assert sum(end - start for start, end in exposed) == pytest.approx(overlap.exposed, rel=1e-12)
    both = sum(end - start for start, end in hidden + exposed)
    assert both == pytest.approx(overlap.communication, rel=1e-12)
    assert {start for start, _ in hidden + exposed} >= {bucket.start for bucket in overlap.buckets}


def test_lines_lead_from_full_to_begun_and_the_title_says_what_it_costs():
    overlap = fill_buckets(EIGHT, 500_000, **LINK)
    axes = draw_buckets(overlap).axes[0]
    lines = [tuple(line.get_xdata()) for line in axes.lines if len(set(line.get_ydata())) == 2 and line.get_ls() == "-"]
    assert lines == [(bucket.ready, bucket.start) for bucket in overlap.buckets]
    assert axes.get_title("left") == "4 buckets: 3.786 ms, 65% of communication exposed"
    assert {text.get_text() for text in axes.texts} - {""} == {"512 KiB", *"01234567"}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["hidden", "exposed"]


def test_pictures_of_several_sizes_can_share_an_axis():
    axes = [draw_buckets(fill_buckets(EIGHT, size, **LINK), 5e-3).axes[0] for size in SIZES]
    assert {each.get_xlim() for each in axes} == {axes[0].get_xlim()} and axes[0].get_xlim()[1] >= 5e-3


@pytest.mark.parametrize("ranks", [1, 4])
def test_it_follows_the_page(ranks):
    figure = draw_buckets(fill_buckets(EIGHT * 16, 0, ranks=ranks, latency=1e-5, bandwidth=1e9))
    picture = style.svg(figure, "buckets")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
    assert len(picture) < 300_000 and len(style.png(figure)[0]) < 300_000


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "layers is empty: expected at least one layer"),
        (EIGHT, {"ranks": 0}, "ranks = 0: expected 1 or more"),
        (EIGHT, {"latency": -1.0}, r"latency = -1.0 s.*expected a finite latency of 0 or more"),
        (EIGHT, {"bandwidth": 0.0}, "bandwidth = 0.0 bytes/s"),
        (EIGHT, {"bandwidth": math.nan}, "bandwidth = nan bytes/s"),
        (EIGHT, {"bucket_bytes": -1}, "bucket_bytes = -1"),
    ],
)
def test_what_cannot_be_reckoned(layers, options, message):
    with pytest.raises(ValueError, match=message):
        fill_buckets(layers, **({"bucket_bytes": 1} | LINK | options))
