"""`threeloops plan` as its users meet it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from threeloops.capstone import make_plan, read_prices, read_scenario
from threeloops.commands.faults import CommandError
from threeloops.commands.plan import plan


def threeloops(*words, cwd, **environment):
    command = [sys.executable, "-m", "threeloops.commands.program", "plan", *map(str, words)]
    variables = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=variables, check=False)


def test_an_example_is_planned_in_80_columns(tmp_path):
    done = threeloops("7b_finetuning", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("7B fine-tuning on one node", "parallelism", "H100 SXM", "Total", "clouds are 30% cheaper"):
        assert word in done.stdout
    assert not list(tmp_path.iterdir()), "nothing is written unless a folder is named"


def test_examples_are_listed(capsys):
    plan(examples=True)
    assert capsys.readouterr().out.split() == ["70b_pretraining", "7b_finetuning", "bursty_serving"]


TOO_SOON = """
title = "too soon"
[model]
preset = "llama-2-7b"
[cluster]
accelerators = ["H100"]
[training]
tokens = 2e9
batch = 128
sequence = 4096
deadline_days = 0.1
"""


def test_what_cannot_be_done_ends_with_1_and_a_way_out(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(TOO_SOON)
    with pytest.raises(typer.Exit) as end:
        plan(str(tmp_path / "mine.toml"))
    said = capsys.readouterr()
    assert end.value.exit_code == 1 and not said.out
    assert "not feasible: H100" in said.err and "It would do with cluster.gpus = 32 instead of 8" in said.err


def test_a_wrong_word_is_answered_with_one_sentence(tmp_path):
    (tmp_path / "bad.toml").write_text(TOO_SOON.replace("[training]", "gpus = 0\n[training]"))
    for words, sentence in (
        ((), "no scenario: name a TOML file, or one of the examples 70b_pretraining"),
        (("nothing.toml",), "nothing.toml: no such file"),
        (("7b_finetuning", None, "md", Path("none.toml")), "none.toml: No such file or directory"),
        ((str(tmp_path / "bad.toml"),), "bad.toml: cluster.gpus = 0: expected greater than or equal to 1"),
    ):
        with pytest.raises(CommandError) as fault:
            plan(*words)
        assert sentence in str(fault.value)


def test_other_prices_change_the_bill(tmp_path, capsys):
    row = read_prices().find("cloud", "H100")
    rows = [
        f'[[price]]\nitem = "cloud"\naccelerator = "{name}"\nvalue = {value}\nunit = "{row.unit}"\n'
        f'level = "published"\nsource = "my contract"\ndate = "2026-11-01"\n'
        for name, value in (("H100", 2.0), ("A100", 1.5), ("H200", 9.0))
    ]
    (tmp_path / "mine.toml").write_text("\n".join(rows))
    plan("7b_finetuning", None, "md", tmp_path / "mine.toml")
    made = make_plan(read_scenario("7b_finetuning"), read_prices(tmp_path / "mine.toml"))
    assert f"{made['total_cost']:,.0f}" in capsys.readouterr().out and made["gpu_hour_price"] == 2.0
    assert made.decision("rent or own").choice == "rent"


def test_documents_are_written_where_they_are_wanted(tmp_path, capsys):
    plan("7b_finetuning", tmp_path / "plans" / "mine", "md, xlsx")
    names = {path.name for path in (tmp_path / "plans" / "mine").iterdir()}
    assert {"plan.md", "plan.xlsx"} <= names and not [name for name in names if name.endswith((".docx", ".tmp"))]
    assert f"wrote {tmp_path / 'plans' / 'mine' / 'plan.md'}" in capsys.readouterr().out
    with pytest.raises(CommandError, match="--formats doc: format 'doc': did you mean 'docx'"):
        plan("7b_finetuning", tmp_path, "doc")
