"""`progress` passes its items through unchanged and ends with one line on stdout."""

import itertools

import pytest
from threeloops.lab import progress
from threeloops.lab.widgets.progress import _Line


def test_items_pass_through_and_the_last_line_counts_them(capsys):
    assert list(progress([3, 1, 2], "steps")) == [3, 1, 2]
    captured = capsys.readouterr()
    assert captured.out.startswith("steps: 3 of 3, ") and captured.out.count("\n") == 1
    assert captured.err == ""


def test_items_are_taken_only_when_asked_for(capsys):
    taken = []
    source = (taken.append(i) or i for i in itertools.count())
    first = list(itertools.islice(progress(source, "steps", total=10), 2))
    assert first == [0, 1] and taken == [0, 1]


def test_an_unknown_total_is_only_counted(capsys):
    list(progress(iter("ab"), "steps"))
    assert capsys.readouterr().out.startswith("steps: 2, ")


@pytest.mark.parametrize("leave", ["break", "raise"])
def test_a_loop_that_is_left_says_where(capsys, leave):
    def run():
        loop = progress(range(10), "steps")
        for i in loop:
            if i == 2:
                if leave == "raise":
                    raise KeyError(i)
                loop.close()
                break

    if leave == "raise":
        with pytest.raises(KeyError):
            run()
    else:
        run()
    assert "steps: 2 of 10, " in (out := capsys.readouterr().out) and "(stopped early)" in out


def test_the_bar_never_leaves_its_frame():
    for total, done, share in ((4, 1, "25.0%"), (4, 9, "100.0%"), (0, 0, None), (None, 3, None)):
        html = _Line("<steps>", total).html(done, "<steps>")
        assert "<steps>" not in html
        assert (f"width:{share}" in html) if share else ("width:" not in html)
