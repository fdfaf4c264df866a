"""The other checks, and the block that counts them."""

import linecache
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from threeloops.lab import CheckFailed, check


def refusal(fn, *args, **kwargs) -> str:
    with pytest.raises(CheckFailed) as caught:
        fn(*args, **kwargs)
    return str(caught.value)


def test_true_takes_truths_and_nothing_that_is_merely_truthy():
    check.true(True, "")
    check.true(np.bool_(True), "")
    check.true(torch.tensor(True), "")
    assert "losses fall" in refusal(check.true, False, "losses fall")
    for truthy in (1, "yes", [1], torch.ones(1), np.ones(2, dtype=bool), object()):
        assert "expected a bool" in refusal(check.true, truthy, "losses fall")


def test_shape_and_dtype():
    check.shape(torch.ones(2, 3), (2, 3))
    check.shape(np.ones(()), ())
    check.dtype(torch.ones(2, dtype=torch.bfloat16), torch.bfloat16)
    check.dtype(np.ones(2, dtype=np.float32), np.float32)
    assert "shape (3, 2)" in refusal(check.shape, torch.ones(3, 2), (2, 3), what="the scores")
    assert "[1, 2]" in refusal(check.shape, [1, 2], (2,))
    assert "torch.float32" in refusal(check.dtype, torch.ones(2), torch.float16)
    assert "1.0" in refusal(check.dtype, 1.0, torch.float16)


def raiser(error):
    raise error


def test_raises_wants_the_type_and_the_words():
    check.raises(ValueError, raiser, ValueError("block_size = 0: expected a positive number"), names="block_size = 0")
    check.raises(ValueError, raiser, ValueError("rank 3 of 4"), names=("rank 3", "of 4"))
    check.raises(ArithmeticError, lambda *, over: 1 / over, over=0)
    assert "returned 3" in refusal(check.raises, ValueError, abs, -3)
    assert "raised KeyError: 'x'" in refusal(check.raises, ValueError, raiser, KeyError("x"))
    assert "contains 'rank'" in refusal(check.raises, ValueError, raiser, ValueError("bad"), names="rank")


def test_accepts_wants_a_result():
    assert check.accepts(abs, -3) == 3
    said = refusal(check.accepts, raiser, ValueError("k = 5"))
    assert "raiser(" in said and "raised ValueError: k = 5" in said and "a result: these arguments are allowed" in said
    with pytest.raises(NotImplementedError):
        check.accepts(raiser, NotImplementedError())


def test_a_block_of_refusals_alone_fails():
    with pytest.raises(CheckFailed, match=r"add check\.accepts"), check("recompute", "segments that do not divide"):
        check.raises(ValueError, raiser, ValueError("k = 5"), names="k = 5")
    with check("recompute", "segments that do not divide"):
        check.raises(ValueError, raiser, ValueError("k = 5"), names="k = 5")
        check.accepts(abs, -3)


def test_an_unwritten_answer_never_counts_as_an_expected_exception():
    with pytest.raises(NotImplementedError):
        check.raises(RuntimeError, raiser, NotImplementedError())
    with pytest.raises(NotImplementedError):
        check.raises(Exception, raiser, NotImplementedError())
    check.raises(RuntimeError, raiser, NotImplementedError("no kernel for this backend"))


def test_raises_takes_no_type_that_would_catch_a_refusal_of_the_wall():
    with pytest.raises(TypeError, match="subclass of Exception"):
        check.raises(BaseException, raiser, ValueError())


def test_a_block_that_holds_says_so_once(capsys):
    with check("chain_time", "the time of a chain"):
        check.close(1.0, 1.0)
        check.equal(1, 1)
        check.true(True, "")
    assert capsys.readouterr().out == "✓ the time of a chain (3 checks)\n"


def test_a_block_that_checked_nothing_fails():
    with pytest.raises(CheckFailed, match="checked nothing"), check("chain_time", "the time of a chain"):
        assert True


def test_checks_of_an_inner_block_do_not_count_for_the_outer_one():
    with pytest.raises(CheckFailed, match="^outer\n.*checked nothing"), check("a", "outer"), check("b", "inner"):
        check.true(True, "")


def test_a_failure_begins_with_the_title_and_closes_the_block(capsys):
    with pytest.raises(CheckFailed, match="^the time of a chain\n"), check("chain_time", "the time of a chain"):
        check.close(1.0, 2.0)
    assert refusal(check.close, 1.0, 2.0).startswith("check\n")
    assert capsys.readouterr().out == ""


def test_an_unwritten_answer_is_named():
    with pytest.raises(CheckFailed, match="chain_time is not written yet"), check("chain_time", "the time of a chain"):
        raiser(NotImplementedError())


def test_before_a_reader_an_unwritten_answer_stops_nothing_and_passes_nothing(monkeypatch, capsys):
    module = sys.modules["threeloops.lab.checking.check"]
    monkeypatch.setattr(module, "live", lambda: True)
    monkeypatch.setattr(module.debrief, "passed", lambda *_: pytest.fail("it counts as passed"))
    with check("chain_time", "the time of a chain"):
        check.close(raiser(NotImplementedError()), 1.0)
    assert capsys.readouterr().out.startswith("○ the time of a chain: chain_time is not written yet")
    with check("chain_time", "the time of a chain"):
        raiser(NotImplementedError("on this device"))
    assert capsys.readouterr().out.startswith("✗ the time of a chain\n  raised     NotImplementedError: on this device")
    monkeypatch.setattr(module.wall, "connection", SimpleNamespace(note_case=lambda *_: None))
    with pytest.raises(CheckFailed, match="chain_time is not written yet"), check("chain_time", "the time of a chain"):
        raiser(NotImplementedError())


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (lambda: check.close(1.0, 2.0, hint="no overlap"), "value      1\n  expected   2\n"),
        (lambda: raiser(KeyError("x")), "raised     KeyError: 'x'"),
        (lambda: check.returns(1.0, raiser, ValueError("n = -1")), "raised ValueError: n = -1"),
    ],
)
def test_before_a_reader_a_failing_check_is_a_red_card_and_stops_nothing(monkeypatch, capsys, fault, seen):
    """Run All goes on; papermill, CI and the wall, where nobody reads along, meet the exception."""
    module = sys.modules["threeloops.lab.checking.check"]
    monkeypatch.setattr(module.debrief, "passed", lambda *_: pytest.fail("it counts as passed"))
    with pytest.raises((CheckFailed, KeyError)), check("chain_time", "the time of a chain"):
        fault()
    monkeypatch.setattr(module, "live", lambda: True)
    with check("chain_time", "the time of a chain"):
        fault()
    said = capsys.readouterr().out
    assert said.startswith("✗ the time of a chain\n") and seen in said
    with pytest.raises(KeyboardInterrupt), check("chain_time", "the time of a chain"):
        raise KeyboardInterrupt
    monkeypatch.setattr(module.wall, "connection", SimpleNamespace(note_case=lambda *_: None))
    with pytest.raises((CheckFailed, KeyError)), check("chain_time", "the time of a chain"):
        fault()


def test_an_exception_of_the_answer_goes_on_and_says_what_was_checked():
    with pytest.raises(KeyError) as caught, check("chain_time", "the time of a chain"):
        raiser(KeyError("x"))
    assert caught.value.__notes__ == ["raised while checking the time of a chain"]


def test_the_generator_is_seeded():
    assert (check.rng(3).random(4) == np.random.default_rng(3).random(4)).all()


def test_a_notebook_shows_the_card_and_the_line_that_asked():
    try:
        with check("chain_time", "the time of a chain"):
            check.close(1.0, 2.0, hint="no overlap")
    except CheckFailed as error:
        lines = error._render_traceback_()
    assert "the time of a chain" in lines[0]
    assert "check.close(1.0, 2.0" in lines[-1]
    assert not any("Traceback" in line or "compare.py" in line for line in lines)


def double(n, *, scale=2):
    return n * scale + 0.0


def test_returns_shows_the_call_with_a_wrong_value_and_with_an_exception():
    check.returns(6.0, double, 3)
    check.returns(3.0, double, 3, scale=1)
    said = refusal(check.returns, 7.0, double, 3, scale=2, hint="the sign")
    for line in ("quantity   double(3, scale=2)", "value      6", "expected   7", "hint       the sign"):
        assert line in said
    assert "double('x') raised TypeError: can only concatenate" in refusal(check.returns, 4, double, "x")
    with pytest.raises(NotImplementedError):
        check.returns(4, raiser, NotImplementedError())


def test_an_exception_in_a_notebook_shows_the_input_and_the_lines():
    cell = "def ratio(a, *rest, scale=1):\n    return divide(a, len(rest))\n\ndef divide(a, b):\n    return a / b\n"
    linecache.cache["<cell 9>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 9>")
    space = {"__name__": "__main__"}
    exec(compile(cell, "<cell 9>", "exec"), space)
    with pytest.raises(CheckFailed) as caught, check("ratio", "the ratio"):
        check.equal(space["ratio"]([1, 2]), 0)
    assert str(caught.value).split("\n") == [
        "the ratio",
        "  raised     TypeError: unsupported operand type(s) for /: 'list' and 'int'",
        "  in         ratio(a=[1, 2], scale=1, rest=())",
        "  at         your cell, line 2: return divide(a, len(rest))",
        "  at         your cell, line 5: return a / b",
    ]


def test_a_pass_says_what_grading_tries_besides(capsys):
    with check("ratio", "the ratio", hidden="other sizes and seeds"):
        check.true(True, "")
    assert "✓ the ratio (1 check; grading also tries other sizes and seeds)" in capsys.readouterr().out


def test_computed_takes_the_expected_tensors_or_one_multiple_of_all_of_them():
    right = [torch.tensor([1.0, -2.0]).double(), torch.tensor([0.0, 3.0, 0.5]).double()]
    for factor in (1.0, 4.0, 0.25):
        check.computed([(factor * each).float() for each in right], right, "rank 0")
    named = dict(zip("ab", right, strict=True))
    check.computed({"b": 2 * right[1], "c": right[0], "a": 2 * right[0]}, named, "rank 0")
    for other in ({"a": right[0]}, right, {"a": right[0], "b": 2 * right[1]}):
        assert "rank 0 has computed something else" in refusal(check.computed, other, named, "rank 0")
    mixed = [right[0], 2 * right[1]]
    for other in ([0 * each for each in right], mixed, right[:1], [right[0], None], [right[1], right[0]]):
        assert "rank 0 has computed something else" in refusal(check.computed, other, right, "rank 0")
    nan = [right[0], right[1] * torch.tensor([1.0, torch.nan, 1.0])]
    assert "rank 0 has computed something else" in refusal(check.computed, nan, right, "rank 0")
    with pytest.raises(ValueError, match="no value but 0"):
        check.computed(right, [0 * each for each in right], "rank 0")
