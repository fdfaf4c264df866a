"""NCCL's measured times beside a line, computed from the packed table without the library's reader."""

import csv
import gzip
import io
from importlib.resources import files

import pytest
from threeloops.hardware import accelerator
from threeloops.lab.drawings.measured import links
from threeloops.lab.drawings.measured.series import Series
from threeloops.training.collectives import fit


def rows(table, wanted):
    packed = (files("threeloops.hardware.measured") / "tables" / f"{table}.csv.gz").read_bytes()
    lines = csv.DictReader(io.StringIO(gzip.decompress(packed).decode()))
    chosen = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
    return sorted((2 * int(line["message_size"]), float(line["us"]) / 1e6) for line in chosen)


def same(times, expected):
    sizes, seconds = zip(*expected, strict=True)
    assert times.sizes == sizes
    assert times.seconds == pytest.approx(seconds, rel=1e-12)


def test_times_are_those_of_the_tables():
    node = {"device": "h100_sxm", "num_gpus": "8"}
    of = {"op_name": "all_reduce", "nccl_dtype": "half"}
    nccl = links.nccl("H100 SXM")
    same(nccl, rows("nccl", node | of))
    assert nccl.source.startswith("8 × H100 SXM, NCCL 2.29.2, measured by NVIDIA")
    engine = links.engine("H100 SXM")
    kind = {"tool": "vllm/0.24.0", "kernel_source": "vLLM_custom_graph"}
    same(engine, rows("custom_all_reduce", node | kind))
    assert engine.source.startswith("8 × H100 SXM, vLLM 0.24.0, measured by NVIDIA")


def test_a_line_of_every_second_time_is_a_quarter_off_for_the_others():
    """Lab 08 says: 15 to 50% off at worst, α of 17 µs, and three times as long with 3.4 µs per step."""
    nccl = links.nccl()
    assert (len(nccl.sizes), nccl.sizes[0], nccl.sizes[-1]) == (17, 512, 2**29)
    fitted, judged = links.halves(nccl)
    assert (fitted.sizes, judged.sizes) == (nccl.sizes[::2], nccl.sizes[1::2])
    link = fit(fitted.sizes, fitted.seconds)
    off = links.errors(judged, link.latency, link.bandwidth)
    by_hand = [(link.latency + s / link.bandwidth - t) / t for s, t in zip(judged.sizes, judged.seconds, strict=True)]
    assert off == pytest.approx(by_hand)
    assert min(off) == off[judged.sizes.index(2**22)] == pytest.approx(-0.28, abs=0.01)
    assert 0.15 < max(map(abs, off)) < 0.5
    assert 1e6 * link.latency == pytest.approx(17.0, abs=0.1)
    assert 14 * 3.4 / (1e6 * nccl.seconds[0]) == pytest.approx(3, abs=0.1)


def test_vllm_is_faster_up_to_32_mib():
    """Lab 08 says 32 MiB, and what 512 bytes take."""
    engine, nccl = links.engine(), links.nccl()
    assert links.wins_up_to(engine, nccl) == 32 * 2**20
    assert [1e6 * times.seconds[times.sizes.index(512)] for times in (engine, nccl)] == pytest.approx([4.7, 15.6], 0.01)


def test_a_loss_ends_the_wins():
    one = Series((1, 2, 4, 8), (1.0, 1.0, 3.0, 1.0), "")
    assert links.wins_up_to(one, Series((2, 4, 8), (2.0, 2.0, 2.0), "")) == 2
    assert links.wins_up_to(one, Series((4,), (2.0,), "")) == 0


@pytest.mark.parametrize("own", [False, True])
def test_the_picture_has_every_time_once(own):
    fitted, judged = links.halves(links.nccl())
    engine = links.engine() if own else None
    fig = links.draw_line(fitted, judged, (17e-6, 216e9), {"lab": {512: 48e-6}, "line": {512: 17e-6}}, engine)
    lines = {line.get_label(): line for line in fig.axes[0].get_lines()}
    for name, times in (("NCCL, fitted", fitted), ("NCCL, judges the line", judged)):
        assert list(lines[name].get_ydata()) == pytest.approx([1e6 * second for second in times.seconds])
    assert [list(lines[name].get_ydata()) for name in ("lab", "line")] == [[pytest.approx(48)], [pytest.approx(17)]]
    assert ("vLLM's own" in lines) is own
    if own:
        assert max(lines["vLLM's own"].get_xdata()) == 2**28


@pytest.mark.parametrize(("device", "folder"), [("A100 SXM 80GB", "a100_sxm"), ("H200 SXM", "h200_sxm")])
def test_other_collectives_are_those_of_the_table(device, folder):
    wanted = {"device": folder, "num_gpus": "8", "op_name": "all_gather", "nccl_dtype": "half"}
    same(links.nccl(device, "all_gather"), rows("nccl", wanted))


def test_lab_08s_dive_says_where_the_switch_adds():
    """On the H200 an all-reduce has more bus bandwidth than a link, which no ring can have."""
    ratios = {}
    for device in ("A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200"):
        gather, reduce = links.nccl(device, "all_gather"), links.nccl(device)
        assert gather.sizes[-1] == reduce.sizes[-1] == 2**29
        buses = [share * 2**29 / times.seconds[-1] for share, times in ((7 / 8, gather), (14 / 8, reduce))]
        ratios[device] = buses[1] / buses[0]
        assert (buses[1] > accelerator(device).link_bandwidth) == (device == "H200 SXM")
    assert list(ratios.values()) == pytest.approx([1.08, 1.33, 1.37, 1.14], abs=0.005)
