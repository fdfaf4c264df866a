"""The last section of a lab: the reader's answers at work together, or the reference where one is missing."""

import linecache
import sys

import pytest
import torch
import triton
from threeloops.inner import interpreter
from threeloops.lab import check, together

interpreter.enable_without_gpu()


def solve(part="", *, right=True):
    with check("reuse", "how often", part=part):
        check.true(right, "wrong")


def test_a_solved_exercise_is_the_readers_own(in_a_lab, capsys):
    solve()
    parts = together("reuse")
    assert parts.reuse is sys.modules["__main__"].reuse
    assert capsys.readouterr().out.endswith("Yours: `reuse`.\n")


def test_an_unsolved_one_is_the_model_answer_and_the_notebook_keeps_its_own(in_a_lab, capsys):
    own = sys.modules["__main__"].reuse
    parts = together("reuse")
    assert parts.reuse(3) == 3
    assert parts.reuse is not own is sys.modules["__main__"].reuse
    assert "Replaced by the reference: `reuse`" in capsys.readouterr().out


def test_one_part_that_fails_leaves_the_exercise_unsolved(in_a_lab):
    solve("values")
    with pytest.raises(AssertionError):
        solve("edges", right=False)
    assert together("reuse").reuse is not sys.modules["__main__"].reuse
    solve("edges")
    assert together("reuse").reuse is sys.modules["__main__"].reuse


def test_without_model_answers_the_library_takes_the_place(in_a_lab, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path / "solutions")
    assert together("reuse", library={"reuse": round}).reuse is round
    assert together("reuse") is None
    assert "comes alive when the checks of `reuse` have passed" in capsys.readouterr().out


def test_a_stand_in_names_functions_that_are_not_called_like_the_exercise(in_a_lab, monkeypatch, tmp_path):
    stand_ins = {"reuse": {"times": round, "share": abs}}
    monkeypatch.setattr(sys.modules["__main__"], "times", max, raising=False)
    monkeypatch.chdir(tmp_path / "solutions")
    replaced = together("reuse", library=stand_ins)
    assert (replaced.times, replaced.share) == (round, abs)
    solve()
    assert together("reuse", library=stand_ins).times is max  # the reader's own


def test_a_solved_exercise_has_all_that_it_defines_even_without_model_answers(in_a_lab, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["__main__"], "restore", max, raising=False)
    monkeypatch.chdir(tmp_path / "solutions")
    solve()
    parts = together("reuse")
    assert parts.restore is max
    with pytest.raises(AttributeError, match="nobody_defines_this"):
        parts.nobody_defines_this  # noqa: B018


def test_the_model_answer_uses_what_the_notebook_defines(in_a_lab, monkeypatch):
    in_a_lab.write_text(in_a_lab.read_text().replace("return tile", "return FACTOR * tile"))
    monkeypatch.setattr(sys.modules["__main__"], "FACTOR", 5, raising=False)
    assert together("reuse").reuse(3) == 15


def test_a_kernel_of_the_model_answer_is_launched(in_a_lab, monkeypatch):
    kernel = """@triton.jit
def add_kernel(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)


def reuse(x):
    add_kernel[(1,)](x, BLOCK=4)
    return x
"""
    head = in_a_lab.read_text().partition("def reuse")[0]
    in_a_lab.write_text(head + kernel)
    monkeypatch.setattr(sys.modules["__main__"], "triton", triton, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "tl", triton.language, raising=False)
    assert together("reuse").reuse(torch.zeros(4)).tolist() == [1, 1, 1, 1]
    assert "<model answer of reuse>" in linecache.cache
