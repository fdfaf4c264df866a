"""`threeloops cluster`: a script that nobody changed runs on virtual ranks."""

import json

import pytest
from threeloops.commands.program import _app
from threeloops.training.cluster import fabric, one_node, pcie_only, read_topology, uniform
from typer.testing import CliRunner

SCRIPT = """
import argparse, os
import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1000)
    elements = parser.parse_args().elements
    dist.init_process_group("gloo")
    x = torch.full((elements,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    print("sum", x[0].item(), "in node", os.environ["GROUP_RANK"], "as", os.environ["LOCAL_RANK"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def run(*words):
    return CliRunner().invoke(_app, ["cluster", *map(str, words)])


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def test_a_script_runs_as_it_is_and_its_time_and_bytes_are_said(script):
    done = run("--ranks", 2, script, "--elements", 500_000)
    assert done.exit_code == 0, done.output
    assert "[rank 0] sum 3.0 in node 0 as 0" in done.output
    # A ring of two: each rank sends 1 MB twice at 1 GB/s, 10 µs away.
    assert "2.02 ms of virtual" in done.output
    assert done.output.count("1.907 MiB") == 2
    assert "charged no time for computing" in done.output


def test_a_chart_and_a_trace_are_written(script, tmp_path):
    trace = tmp_path / "trace.json"
    done = run("--topology", "2 x 2 x H100 SXM", "--gantt", tmp_path / "run.svg", "--trace", trace, script)
    assert done.exit_code == 0, done.output
    assert "[rank 3] sum 10.0 in node 1 as 1" in done.output
    assert "2 × 2 × H100 SXM" in done.output
    assert "<svg" in (tmp_path / "run.svg").read_text()
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert "all_reduce" in names


def test_a_script_that_fails_is_named_with_its_line_and_exit_code_1(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import torch.distributed as dist\nif dist.get_rank():\n    dist.barrier()\nprint('here')\n")
    done = run(broken)
    assert done.exit_code == 1
    assert "rank 1 waits (broken.py:3) for barrier, which rank 0 did not call" in done.stderr
    assert "[rank 0] here" in done.output


@pytest.mark.parametrize(("status", "code"), [("", 0), ("0", 0), ("3", 1), ("'no data'", 1)])
def test_the_exit_status_of_a_script_counts(tmp_path, status, code):
    (tmp_path / "ends.py").write_text(f"import sys\nsys.exit({status})\n")
    assert run(tmp_path / "ends.py").exit_code == code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere.py",), "nowhere.py: no such file. To run a module by its name pass module=True (-m in a terminal)"),
        (("--ranks", 0), "ranks = 0: expected 1 to 128"),
        (("--topology", "8 H100"), "topology '8 H100': expected for example '8 ranks'"),
        (("--topology", "8 x H1000"), "no accelerator is called 'H1000': did you mean H100"),
        (("--ranks", 4, "--topology", "8 x H100 SXM"), "'8 x H100 SXM' has 8 ranks, and 4 were asked for"),
        (("--gantt", "run.bmp"), "--gantt run.bmp: expected a name that ends in .svg"),
        (("--trace", "nowhere/run.json"), "there is no folder"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_exit_code_2(script, words, sentence):
    done = run(*words, *([script] if words[0].startswith("--") else []))
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("4 ranks", uniform(4)),
        ("8 x H100 SXM", one_node("H100 SXM", 8)),
        ("2 × 8 × H100 SXM", fabric(2, 8, "H100 SXM")),
        ("4 x L40S, PCIe", pcie_only("L40S", 4)),
    ],
)
def test_a_topology_has_the_name_of_its_chart(text, topology):
    assert read_topology(text) == topology
    assert read_topology(text, topology.ranks) == topology
    if "ranks" not in text:
        assert read_topology(topology.name) == topology
