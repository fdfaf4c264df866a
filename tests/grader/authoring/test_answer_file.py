"""The form of `answers.md`: what a section says, and each way in which it can fail to fit."""

import pytest
from threeloops_grader.authoring.markdown.answer_file import drafts, written
from threeloops_grader.authoring.markdown.hunks import apply, difference

REFERENCE = """\
def total(rows):
    found = 0.0
    for row in rows:
        found += row

    for row in rows:
        found += 1
    return found
"""


def change(block, head="## wrong/total__odd\n- expect: x\n"):
    return f"{head}```diff\n{block}```\n"


def applied(block):
    (section,) = drafts(change(block))
    return apply(section.hunks, REFERENCE)


def test_a_section_says_what_grading_must_show_and_what_is_changed():
    text = """\
# Answers

Text for readers.

## wrong/total__starts_at_one
The sum starts at one.
- expect: off by: one
- fails: values, edges
```diff
-    found = 0.0
+    found = 1.0
@@
     for row in rows:
-        found += 1
```

## right/total__an_integer
```diff
-    found = 0.0
+    found = 0
```

## right/total__a_loop
```python
def total(rows):

    # sum
    ...
```
"""
    wrong, right, another = drafts(text)
    assert (wrong.side, wrong.name, wrong.line) == ("wrong", "total__starts_at_one", 5)
    assert wrong.keys == {"expect": "off by: one", "fails": "values, edges"}
    assert [(hunk.line, hunk.before, hunk.after) for hunk in wrong.hunks] == [
        (10, ["    found = 0.0"], ["    found = 1.0"]),
        (13, ["    for row in rows:", "        found += 1"], ["    for row in rows:"]),
    ]
    assert (right.side, right.name, right.line, right.keys) == ("right", "total__an_integer", 17, {})
    assert another.place == "answers.md:23, right/total__a_loop"
    assert (another.whole, another.hunks, right.whole) == ("def total(rows):\n\n    # sum\n    ...\n", (), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## total__odd\n", "line 1: '## total__odd': expected '## wrong/<exercise>__<what_is_wrong>' or"),
        (change("-a\n") + "# Other answers\n", "line 6: '# Other answers': expected '## wrong/"),
        (
            "## wrong/total__odd\n- expect: x\n",
            "line 1: wrong/total__odd has no code: expected a block ```diff or ```python",
        ),
        (
            change("-a\n", "## wrong/a__b\n- expect: x\n- expect: y\n"),
            "line 3: '- expect: y': wrong/a__b has this key twice",
        ),
        (
            change("-a\n", "## right/a__b\n- expect: x\n"),
            "line 1: right/a__b has the key 'expect': a right answer earns all",
        ),
        (change("-a\n") + "```diff\n-b\n```\n", "line 6: '```diff': expected one block per section"),
        ("## wrong/a__b\n```text\n", "line 2: '```text': expected one block per section, from ```diff or ```python to"),
        (
            change("return 1\n"),
            "line 4: 'return 1': in the change of wrong/total__odd, a line begins with -, + or a space",
        ),
        (change("@triton.jit\n"), "line 4: '@triton.jit': in the change"),
        ("## wrong/a__b\n```diff\n-a\n", "line 2: the block of wrong/a__b is not closed with ```"),
    ],
)
def test_a_line_that_does_not_fit_the_form_is_named(text, message):
    with pytest.raises(ValueError, match="line") as refused:
        list(drafts(text))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            "-    found = 1.0\n",
            "line 4: the reference does not have these lines, one after the other:\n        found = 1.0",
        ),
        ("-    found = 0.0\n-        found += row\n", "does not have these lines, one after the other"),
        ("-    for row in rows:\n", "line 4: the reference has these lines 2 times; add a line before or after them"),
        (
            "+    print(rows)\n",
            "line 4: this hunk adds lines without saying where; add the line of the reference before",
        ),
        ("     found = 0.0\n", "line 4: this hunk changes nothing; mark lines with - and +"),
        ("", "line 4: this hunk changes nothing"),
        (
            "-    found = 0.0\n@@\n     found = 0.0\n     for row in rows:\n-        found += row\n",
            "line 6: this hunk and the one in line 4 share a line; join them",
        ),
    ],
)
def test_a_change_that_does_not_fit_the_reference_is_named(block, message):
    with pytest.raises(ValueError, match="line") as refused:
        applied(block)
    assert message in str(refused.value)


def test_hunks_may_come_in_any_order_and_a_blank_line_needs_no_mark():
    block = (
        "     return found\n+    # done\n@@\n"
        "         found += row\n\n-    for row in rows:\n+    for row in rows[1:]:\n"
    )
    assert applied(block) == (
        REFERENCE.replace("\n\n    for row in rows:", "\n\n    for row in rows[1:]:") + "    # done\n"
    )


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (REFERENCE.replace("0.0", "1.0"), ["-    found = 0.0", "+    found = 1.0"]),
        (
            REFERENCE.replace("0.0", "1.0").replace("+= 1", "+= 2"),
            ["-    found = 0.0", "+    found = 1.0", "@@", "-        found += 1", "+        found += 2"],
        ),
        (
            REFERENCE.replace("    return", "    found += 1\n    return"),
            ["         found += 1", "+    found += 1", "     return found"],
        ),
    ],
)
def test_a_change_is_written_with_no_more_lines_than_name_its_place(answer, lines):
    assert difference(REFERENCE, answer) == lines
    (section,) = drafts(written("wrong/total__odd", {"expect": "x", "fails": "a, b"}, REFERENCE, answer))
    assert apply(section.hunks, REFERENCE) == answer
    assert section.keys == {"expect": "x", "fails": "a, b"}


@pytest.mark.parametrize("position", range(8))
def test_what_is_written_of_any_change_of_a_line_makes_the_answer(position):
    lines = REFERENCE.splitlines()
    for changed in (["    new"], [], [lines[position], "    new"], [lines[position], lines[position]]):
        answer = "\n".join(lines[:position] + changed + lines[position + 1 :]) + "\n"
        (section,) = drafts(written("wrong/total__odd", {"expect": "x"}, REFERENCE, answer))
        assert apply(section.hunks, REFERENCE) == answer


def test_an_answer_that_is_the_reference_is_no_change():
    with pytest.raises(ValueError, match="the answer is the reference"):
        difference(REFERENCE, REFERENCE)
