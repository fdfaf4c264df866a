"""The pages of measurements say what the evidence says: every number from a file, losses as plainly as gains."""

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from threeloops_grader.machine.provenance import Provenance

from benchmarks import __main__ as command
from benchmarks import report
from benchmarks.__main__ import BENCHMARKS, ON_CPU
from benchmarks.report.evidence import COLLECTED, FOLDER, current, read
from benchmarks.report.page import ON_GPU, TOPICS, pages
from benchmarks.report.rows import FASTER, LESS, amount, beside, distance, verdict, within
from benchmarks.result import Result, Series

ROOT = Path(__file__).resolve().parents[1]


def committed():
    """The evidence that git tracks: what somebody measures on this machine is not part of the page yet."""
    listed = subprocess.run(["git", "ls-files", FOLDER], cwd=ROOT, capture_output=True, text=True)
    names = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(".json")]
    return [name for name in names if name.is_file()] or report.evidence_files()


def made(files):
    found = pages(files, BENCHMARKS, ON_CPU)
    return found[report.ON_GPUS] + found[report.ON_CPUS]


def about(name="NVIDIA H100", device="cuda", recorded="2026-11-27T00:00:00+00:00"):
    return Provenance(device, name, 1 << 36, 16, "9.0", None, {}, None, None, "0" * 64, recorded)


def write(folder, file, /, **changes):
    """An evidence file; its benchmark is sustained unless it is another's."""
    series = [
        Series("a product", "bursts after a pause", "FLOP/s", (8e14, 8e14), "higher", peer=True),
        Series("a product", "last ten seconds under load", "FLOP/s", (6e14, 6.4e14), "higher"),
    ]
    result = Result("sustained", about(), {"quick": False}, series)
    for attribute, value in changes.items():
        setattr(result, attribute, value)
    (path := folder / file).write_text(result.to_json(), encoding="utf-8")
    return path


def parts(folder, **results):
    """What `make evidence` writes: parts by name, each with its result."""
    found = [{"name": n.replace("_", " "), "status": "ok", "reason": "", "result": r} for n, r in results.items()]
    (path := folder / "evidence.json").write_text(
        json.dumps({"provenance": asdict(about()), "complete": True, "parts": found})
    )
    return path


def rows(text, word):
    """The cells of each table row whose first cell holds a word."""
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in lines if word in cells[0]]


def written():
    return {name: (report.PLACE / name).read_text(encoding="utf-8") for name in (report.ON_CPUS, report.ON_GPUS)}


def test_the_pages_are_what_the_evidence_gives():
    assert written() == pages(committed(), BENCHMARKS, ON_CPU), "run `python -m benchmarks report`"


def test_a_page_can_be_read_in_one_sitting():
    for text in written().values():
        assert len(text.splitlines()) <= 280
        columns = [line.count(" | ") for line in text.splitlines() if line.startswith("| ")]
        assert set(columns) <= {4, 5}


def test_every_link_leads_to_evidence():
    targets = set(re.findall(r"\]\(([^)]+)\)", "".join(written().values())))
    assert targets and all((report.PLACE / target).is_file() for target in targets)


def test_every_benchmark_has_a_table_or_is_listed_as_not_measured():
    text = made(committed())
    tables, _, unmeasured = text.partition("## Not measured yet")
    ran = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"^`python -m benchmarks ([^`]+)`", tables, re.M))))
    on_no_device = " ".join(line for line in unmeasured.splitlines() if "On no device" in line)
    for name in BENCHMARKS:
        assert name in ran or f"`{name}`" in on_no_device, name


def test_every_benchmark_has_a_summariser():
    summarisers = {name for topic in TOPICS.values() for name in topic} | ON_GPU.keys()
    assert summarisers == BENCHMARKS.keys() | {COLLECTED}
    assert set(BENCHMARKS) - ON_CPU <= ON_GPU.keys()


def test_a_benchmark_without_evidence_is_listed(tmp_path):
    text = pages([write(tmp_path, "sustained.json")], {"sustained": "", "cooling": "", "wall": ""}, {"wall"})[
        "README.md"
    ]
    assert "- On no device: `cooling`, `wall`." in text
    assert "`wall` always use the CPU" in text


def test_a_benchmark_that_was_measured_on_a_cpu_alone_is_listed_for_a_gpu():
    cpu_only = [path for path in committed() if read(path).provenance.device == "cpu"]
    (line,) = [line for line in made(cpu_only).splitlines() if line.startswith("- On a GPU: ")]
    assert all(f"`{name}`" in line for name in ("roofline", "kernels", "precision", "memory", "decode"))
    assert "`serving`" not in line, "it always uses the CPU"


def test_a_number_is_that_of_the_file(tmp_path):
    (row,) = rows(made([write(tmp_path, "sustained.json")]), "A product")
    assert row[1:4] == ["620 TFLOP/s (600 … 640)", "bursts after a pause: 800 TFLOP/s", "▼ 78% of the burst rate"]
    faster = [Series("a product", "bursts after a pause", "FLOP/s", (8e14,), "higher", peer=True),
              Series("a product", "last ten seconds under load", "FLOP/s", (4e14,), "higher")]  # fmt: skip
    (row,) = rows(made([write(tmp_path, "sustained.json", series=faster)]), "A product")
    assert row[3] == "▼ 50% of the burst rate"


@pytest.mark.parametrize(
    ("ratios", "words", "text"),
    [
        ([4.5], FASTER, "▲ 4.5 times faster"),
        ([1 / 1.4], FASTER, "▼ 1.4 times slower"),
        ([0.95], FASTER, "▼ 5% slower"),
        ([1.05], LESS, "▲ 5% less"),
        ([1.0], FASTER, "= the same"),
        ([1.003], FASTER, "= the same"),
        ([1.2, 1.5, 3.0], FASTER, "▲ 1.5 times faster (1.2 … 3 times)"),
        ([0.5, 0.4, 0.25], FASTER, "▼ 2.5 times slower (2 … 4 times)"),
        ([0.98, 0.95, 0.8], FASTER, "▼ 5% slower (2% slower … 1.25 times slower)"),
        ([0.8, 1.3, 1.4], FASTER, "▲ 1.3 times faster (1.25 times slower … 1.4 times faster)"),
        ([], FASTER, ""),
    ],
)
def test_a_loss_is_said_as_plainly_as_a_gain(ratios, words, text):
    assert verdict(ratios, words) == text


@pytest.mark.parametrize(
    ("off", "text"),
    [
        ([0.0, 0.0], "as predicted"),
        ([0.002, -0.001], "within 0.2%"),
        ([0.099], "measured 9.9% more"),
        ([-0.039], "measured 3.9% less"),
        ([2.725], "measured 3.7 times as much"),
        ([-0.057, 0.38, 0.49], "measured −5.7%, +38.0%, +49.0%"),
        ([-0.06, 0.1, 0.2, 0.3, 2.31], "measured −6.0% … +231%"),
    ],
)
def test_a_missed_prediction_says_on_which_side(off, text):
    assert distance(off) == text


@pytest.mark.parametrize(("part", "text"), [(0.00101, "0.2%"), (0.037, "3.7%"), (0.0000313, "0.004%"), (0, "0.0%")])
def test_a_bound_holds_after_rounding(part, text):
    assert within(part) == text


def test_samples_are_a_median_and_their_ends():
    assert amount([0.021, 0.0226, 0.0253], "s") == "22.6 ms (21 … 25.3)"
    assert amount([5.0], "1/s") == "5 per second"


def test_peers_stand_below_each_other_in_the_row_of_one_quantity(tmp_path):
    series = [Series("load", by, "s", (seconds,)) for by, seconds in (("ours", 1.0), ("a", 2.0), ("b", 0.5))]
    evidence = read(write(tmp_path, "load.json", series=series))
    (row,) = beside(evidence, "load", "ours", "a", "b", "absent", say="loading")
    link = evidence.path
    assert row.cells() == (
        "Loading",
        "1 s",
        "a: 2 s<br>b: 500 ms",
        "▲ 2 times faster<br>▼ 2 times slower",
        f"[GPU]({link})",
    )
    assert not list(beside(evidence, "load", "ours", "absent", say="loading")), "nothing to compare with, no row"


def test_names_in_evidence_are_shown_in_the_words_of_the_page(tmp_path):
    series = [Series("first token of one alone", by, "s", (1.0,)) for by in ("ours", "the sample server (svc-1)")]
    evidence = read(write(tmp_path, "load.json", series=series))
    (row,) = beside(evidence, series[0].what, "ours", series[1].by, say=f"over HTTP: {series[0].what}")
    assert row.cells()[0] == "Over HTTP: time to first token of a single request"
    assert row.cells()[2] == "the sample server (claim svc-1): 1 s"


def test_nothing_is_said_to_be_faster_than_zero(tmp_path):
    series = [Series("lost", by, "", (count,)) for by, count in (("ours", 0.0), ("a", 98.0), ("b", 0.0))]
    evidence = read(write(tmp_path, "lost.json", series=series))
    (row,) = beside(evidence, "lost", "ours", "a", "b", say="lost")
    assert [outcome for _, outcome in row.against] == ["▲ less", "= as many"]


def test_the_full_form_goes_before_the_quick_one_and_then_the_newest(tmp_path):
    def at(folder, day, quick):
        (tmp_path / folder).mkdir()
        when = about(recorded=f"2026-11-{day}T00:00:00+00:00")
        return write(tmp_path / folder, "sustained.json", provenance=when, settings={"quick": quick})

    paths = [at("a", 10, False), at("b", 11, False), at("c", 12, True)]
    (chosen,) = current(paths)
    assert chosen.date == "2026-11-11"


def test_gpus_are_shown_side_by_side(tmp_path):
    other = write(tmp_path, "other.json", provenance=about("NVIDIA B200"))
    text = made([write(tmp_path, "sustained.json"), other])
    assert "## NVIDIA H100" in text and "## NVIDIA B200" in text


def kernel(by, seconds=None, **more):
    row = {"kernel": "softmax", "shape": {"rows": 1}, "dtype": "bfloat16", "pass": "forward", "by": by}
    row |= {"bytes": 4e8, "flops": 1e9, "predicted_bound": "memory", **more}
    return row | ({"seconds": seconds} if seconds else {"not_measured": "liger-kernel is not installed"})


def test_kernel_times_come_from_the_evidence_of_a_gpu(tmp_path):
    times = [kernel("threeloops", [2e-4, 1e-4, 1e-4]), kernel("torch", [3e-4]), kernel("flex", [5e-5]), kernel("liger")]
    text = made([parts(tmp_path, kernel_times={"rows": times})])
    (row,) = rows(text, "softmax")
    assert row == ["softmax", "100 µs", "300 µs", "flex: 50 µs", "4 TB/s", "▼ 2 times slower"]
    assert "- NVIDIA H100, 1 kernel times of liger: liger-kernel is not installed." in text


def test_the_rate_of_a_kernel_is_that_of_what_bounds_it(tmp_path):
    times = [kernel(by, [1e-3], predicted_bound="compute", flops=5e11) for by in ("threeloops", "torch")]
    (row,) = rows(made([parts(tmp_path, kernel_times={"rows": times})]), "softmax")
    assert row[4] == "500 TFLOP/s"


def test_the_full_kernels_benchmark_goes_before_the_quick_times(tmp_path):
    times = [kernel("threeloops", [1e-4]), kernel("torch", [1e-4])]
    full = [{**row, "median_seconds": 2e-4} for row in times]
    for row in full:
        del row["seconds"]
    facts = {"time": full, "error": [], "traffic": [], "code": []}
    path = write(tmp_path, "kernels.json", name="kernels", series=[], facts=facts)
    (row,) = rows(made([path, parts(tmp_path, kernel_times={"rows": times})]), "softmax")
    assert row[1:3] == ["200 µs", "200 µs"]


def test_what_failed_on_a_gpu_is_listed_with_its_reason(tmp_path):
    path = parts(tmp_path, GPU_tests={"tests": [{"outcome": "passed"}, {"outcome": "failed"}]})
    found = json.loads(path.read_text())
    found["parts"][0] |= {"status": "failed", "reason": "1 of 2 GPU tests failed"}
    path.write_text(json.dumps(found))
    text = made([path])
    assert rows(text, "GPU tests that pass")[0][1] == "1 of 2"
    assert "- NVIDIA H100, GPU tests: failed, 1 of 2 GPU tests failed." in text


def test_a_file_that_is_not_evidence_is_named(tmp_path):
    (path := tmp_path / "notes.json").write_text("{}")
    with pytest.raises(ValueError, match=r"notes\.json is not an evidence file.*python -m benchmarks NAME"):
        made([path])


def test_evidence_that_lacks_a_fact_is_named_with_what_measures_it_again(tmp_path):
    path = write(tmp_path, "precision.json", name="precision", series=[])
    with pytest.raises(ValueError, match=r"precision\.json lacks .*gpt_loss.*python -m benchmarks precision"):
        made([path])


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "PLACE", tmp_path)
    monkeypatch.setattr(report, "evidence_files", lambda: [write(tmp_path, "sustained.json")])
    assert command.main(["report"]) == 0
    assert "800 TFLOP/s" in (text := (tmp_path / "GPU.md").read_text(encoding="utf-8"))
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setattr(report, "evidence_files", lambda: [tmp_path / "broken.json"])
    assert command.main(["report"]) == 1
    assert "broken.json is not an evidence file" in capsys.readouterr().out
    assert (tmp_path / "GPU.md").read_text(encoding="utf-8") == text
