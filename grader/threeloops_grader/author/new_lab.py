# ruff: noqa: E501 (a cell's metadata stands on one line)
"""`threeloops new`: create the folder of a complete small lab, to change step by step."""

import re
import tempfile
from pathlib import Path

from threeloops_grader.authoring.labs import SOLUTIONS, Lab, LabError, all_labs, course_root
from threeloops_grader.authoring.markdown.answer_file import ANSWERS
from threeloops_grader.machine.installed import require_solutions

__all__ = ["begin"]

_NAME = re.compile(r"\d\d_[a-z][a-z0-9_]*")


def begin(slug: str, root: Path | None = None) -> Lab:
    """Write `solutions/NN_name/`, whole or not at all.

    Raises:
        LabError: `slug` is not a valid name of a lab, its number, name or folder is taken, or the other labs have no
            sources.
    """
    root = root or course_root()
    if not _NAME.fullmatch(slug):
        raise LabError(f"{slug!r} is not a valid name of a lab: expected two digits and words, as in 30_my_lab")
    labs = all_labs(root)
    if labs:  # in a bundle or a wheel, a first source would hide all labs that have none
        require_solutions(labs)
    lab = Lab(slug, root)
    if taken := [other.slug for other in labs if other.number == lab.number]:
        raise LabError(f"lab {lab.number:02} is there already: {taken[0]}; take another number")
    if taken := [other.slug for other in labs if other.name == lab.name]:
        raise LabError(f"{taken[0]} has this name already, and commands take a lab by its name; take another word")
    if lab.folder.exists():
        raise LabError(f"{lab.folder} is there already, and holds no {slug}.py; move it away")
    (root / SOLUTIONS).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / SOLUTIONS, prefix=f".{slug}.", suffix=".tmp") as scratch:
        half = Path(scratch) / slug
        half.mkdir()
        title = lab.name.replace("_", " ").capitalize()
        (half / f"{slug}.py").write_text(_SOURCE.replace("TITLE", title), encoding="utf-8")
        (half / ANSWERS).write_text(_ANSWERS, encoding="utf-8")
        half.rename(lab.folder)
    return lab


_SOURCE = '''# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: TITLE
#     minutes: 10
#     withholds: []
# ---

# %% [markdown]
# # TITLE
#
# How many bytes does a tensor take?

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import math

from threeloops.lab import check, hint

# %% [markdown]
# A tensor of shape (2, 3) has 2 · 3 = 6 elements. In float32, which has 4 bytes per element, they take 6 · 4 = 24 bytes.
#
# ### Exercise 1 (100 points)
#
# `tensor_bytes(shape: tuple, element_bytes: int) -> int` returns the bytes that a tensor of this shape takes. The shape ()
# is the shape of one number.


# %% nbgrader={"grade": false, "grade_id": "tensor_bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tensor_bytes(shape: tuple, element_bytes: int) -> int:
    """Bytes of a tensor."""
    ### BEGIN SOLUTION
    return math.prod(shape) * element_bytes
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "tensor_bytes_test", "locked": true, "points": 100, "schema_version": 3, "solution": false, "task": false}
with check("tensor_bytes", "the bytes of a tensor", hidden="other shapes"):
    check.returns(24, tensor_bytes, (2, 3), 4, unit="B", hint="elements times bytes per element")
    check.returns(8, tensor_bytes, (), 8, unit="B", hint="a number is one element")
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        shape = tuple(int(n) for n in check.rng(seed).integers(1, 9, size=3))
        check.returns(2 * shape[0] * shape[1] * shape[2], tensor_bytes, shape, 2, unit="B")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint("tensor_bytes", "How many elements are there?", "The product of the shape, times the bytes of one element.")

# %% [markdown]
# ## Reflection
#
# Which tensor of a model that you know is the largest, and why?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# The embedding: vocabulary times width, and the vocabulary is large.
'''

_ANSWERS = """# Answers

Each of these is a change to the reference answer, or another program. CONTRIBUTING.md explains the form.

## wrong/tensor_bytes__counts_elements
The size of an element is forgotten.
- expect: elements times bytes per element
```diff
-    return math.prod(shape) * element_bytes
+    return math.prod(shape)
```

## wrong/tensor_bytes__adds_the_dimensions
- expect: elements times bytes per element
```diff
-    return math.prod(shape) * element_bytes
+    return sum(shape) * element_bytes
```

## wrong/tensor_bytes__a_number_has_no_elements
- expect: a number is one element
```diff
-    return math.prod(shape) * element_bytes
+    return math.prod(shape) * element_bytes if shape else 0
```

## right/tensor_bytes__a_loop
```python
def tensor_bytes(shape, element_bytes):
    size = element_bytes
    for n in shape:
        size *= n
    return size
```
"""
