"""The heat map of bytes, read back from its cells and texts."""

import pytest
from matplotlib.collections import PolyCollection
from threeloops.figures import palette
from threeloops.lab.widgets import style
from threeloops.training.cluster.cluster import Run
from threeloops.training.cluster.machine.records import Message
from threeloops.training.cluster.machine.topology import fabric, uniform
from threeloops.training.cluster.pictures import link_matrix


def made(topology, sizes):
    """A run with one message for each (source, target): bytes."""
    sent = [Message(a, b, size, "world", 0, 0.0, 0.0, 1.0, 1.0, received=True) for (a, b), size in sizes.items()]
    return Run(topology, (None,) * topology.ranks, (1.0,) * topology.ranks, tuple(sent), (), 0)


def cells_of(figure):
    """Opacity by (row, column)."""
    (cells,) = [c for c in figure.axes[0].collections if type(c) is PolyCollection]
    corners = [path.vertices.min(axis=0).astype(int) for path in cells.get_paths()]
    return {(y, x): colour[3] for (x, y), colour in zip(map(tuple, corners), cells.get_facecolors(), strict=True)}


def numbers_of(figure):
    places = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    return {(int(y), int(x)): text for (x, y), text in places.items()}


def test_the_row_sends_and_the_column_receives():
    figure = link_matrix(made(uniform(4), {(0, 1): 3 << 20, (2, 3): 12 << 20, (3, 0): 6 << 20}))
    assert numbers_of(figure) == {(0, 1): "3", (2, 3): "12", (3, 0): "6"}
    shades = cells_of(figure)
    assert shades.keys() == {(0, 1), (2, 3), (3, 0)} and shades[0, 1] < shades[3, 0] < shades[2, 3]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "to rank" and axes.get_ylabel() == "from rank" and axes.yaxis_inverted()
    assert axes.get_title("left") == "MiB sent; at most 12 MiB to one rank"


@pytest.mark.parametrize("name", ["data parallel", "pipeline", "two nodes"])
def test_a_run_is_drawn_with_all_of_its_bytes(runs, name):
    run, units = runs[name], {"Bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    figure = link_matrix(run)
    unit = units[figure.axes[0].get_title("left").split()[0]]
    sent = {(a, b): n for a, row in enumerate(run.bytes) for b, n in enumerate(row) if n}
    assert numbers_of(figure).keys() == sent.keys()
    assert {pair: float(text) for pair, text in numbers_of(figure).items()} == pytest.approx(
        {pair: n / unit for pair, n in sent.items()}, rel=1e-3
    )


def test_several_messages_of_a_pair_add_up_and_empty_ones_are_not_blank():
    run = made(uniform(3), {(0, 1): 700, (1, 2): 0, (2, 0): 1})
    run = Run(run.topology, run.results, run.clocks, run.messages * 2, (), 0)
    assert numbers_of(link_matrix(run)) == {(0, 1): "1.367", (1, 2): "0", (2, 0): "<0.01"}


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 4), (2, 2), (3, 2), (2, 8)])
def test_lines_divide_the_nodes(nodes, per_node):
    ranks = nodes * per_node
    axes = link_matrix(made(fabric(nodes, per_node), {(0, 1): 8})).axes[0]
    across = sorted(line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1)
    down = sorted(line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1)
    assert across == down == [node * per_node for node in range(1, nodes)]
    assert axes.get_xlim() == (0, ranks) and axes.get_ylim() == (ranks, 0)


@pytest.mark.parametrize("ranks", [1, 2, 16, 64])
def test_numbers_are_left_out_where_they_do_not_fit(ranks):
    run = made(uniform(ranks), {(a, (a + 1) % ranks): 1234 << 10 for a in range(ranks) if ranks > 1})
    figure = link_matrix(run)
    assert len(numbers_of(figure)) == (ranks if 1 < ranks < 64 else 0)
    figure.draw_without_rendering()
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    for text in axes.texts:
        x = text.get_position()[0]
        left, right = axes.transData.transform([(x - 0.5, 0), (x + 0.5, 0)])[:, 0]
        box = text.get_window_extent(renderer)
        assert left <= box.x0 and box.x1 <= right
    picture = style.svg(figure, "bytes")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
    assert len(picture) < 300_000 and len(style.png(figure)[0]) < 300_000
    assert (axes.get_title("left") == "no messages") == (ranks == 1)
