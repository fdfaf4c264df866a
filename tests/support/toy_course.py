# ruff: noqa: E501 (a cell's metadata stands on one line)
"""A course of one small lab, written into a folder of the test's own: `make_course(tmp_path)`.

`90_toy` has two exercises (`mean`, 40 points; `rescale`, 45 and 15 points), a data file, three wrong answers each and one
withheld module, so that every part of the chain from source to gradebook has something to do, in milliseconds.
"""

import hashlib
import json
from pathlib import Path

import nbformat
from threeloops_grader.authoring.labs import Lab

SLUG = "90_toy"
SAMPLES = "1.0\n2.0\n6.0\n"

SOURCE = '''\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3 (ipykernel), language: python, name: python3}
#   threeloops:
#     title: A toy with two exercises
#     minutes: 5
#     withholds: [threeloops.inner.roofline]
#     limits: {cell_seconds: 120, notebook_seconds: 900}
# ---

# %% [markdown]
# # A toy with two exercises
#
# What is the middle of a few numbers, and how are they brought to one scale?

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
from pathlib import Path

import nbformat

import numpy as np
from threeloops.lab import check, hint, predict

SAMPLES = [float(line) for line in Path("data/samples.txt").read_text().split()]

# %% tags=["demo"]
predict("mean_of_samples", question="The mean of 1, 2 and 6?")

# %% [markdown]
# ## Exercise 1 (40 points)
#
# `mean(values) -> float`: the arithmetic mean of a list of numbers. An empty list raises `ValueError` naming `values`.

# %% nbgrader={"grade": false, "grade_id": "mean", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mean(values):
    """The arithmetic mean."""
    ### BEGIN SOLUTION
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
    ### END SOLUTION

# %% tags=["demo"] jupyter={"source_hidden": true}
hint("mean", "Add them up.", "Divide by how many there are.")

# %% nbgrader={"grade": true, "grade_id": "mean_test", "locked": true, "points": 40, "schema_version": 3, "solution": false, "task": false}
with check("mean", "the mean of a list"):
    check.close(mean(SAMPLES), 3.0, what="mean of the samples", hint="the sum was not divided by the count")
    ### BEGIN HIDDEN TESTS
    for n in (1, 2, 127):
        values = [float(x) for x in check.rng(n).normal(size=n)]
        check.close(mean(values), float(np.mean(values)), what=f"mean of {n} numbers", hint="a median is not a mean")
    check.raises(ValueError, mean, [], names="values")
    ### END HIDDEN TESTS

# %% [markdown]
# ## Exercise 2 (60 points)
#
# `rescale(values, top)`: a float64 array shaped like `values`, scaled so that its largest magnitude is `top`;
# zeros stay zeros. The argument is not changed.

# %% nbgrader={"grade": false, "grade_id": "rescale", "locked": false, "schema_version": 3, "solution": true, "task": false}
TINY = 0.0


def rescale(values, top):
    """Scale an array to a largest magnitude of `top`."""
    ### BEGIN SOLUTION
    values = np.asarray(values, dtype=np.float64)
    peak = np.abs(values).max(initial=0.0)
    return values * (top / peak) if peak > TINY else values.copy()
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "rescale_test_values", "locked": true, "points": 45, "schema_version": 3, "solution": false, "task": false}
with check("rescale", "an array on a new scale"):
    check.close(rescale(np.array([1.0, 2.0, 4.0]), 1.0), [0.25, 0.5, 1.0], what="rescaled", hint="divide by the peak")
    ### BEGIN HIDDEN TESTS
    check.close(rescale(np.array([1.0, -8.0]), 2.0), [0.25, -2.0], what="rescaled", hint="the magnitude counts, not the sign")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "rescale_test_zeros", "locked": true, "points": 15, "schema_version": 3, "solution": false, "task": false}
with check("rescale", "an array of zeros"):
    check.close(rescale(np.zeros(2), 1.0), [0.0, 0.0], what="rescaled zeros", hint="zeros have no peak to divide by")
    ### BEGIN HIDDEN TESTS
    check.close(rescale(np.zeros(3), 2.0), np.zeros(3), what="rescaled zeros", hint="zeros have no peak to divide by")
    ### END HIDDEN TESTS

# %% [markdown]
# In your own words: when is a mean a poor summary?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# A mean follows its outliers.
'''

DIVES = """\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3 (ipykernel), language: python, name: python3}
#   threeloops:
#     title: A toy with two exercises, deeper
# ---

# %% [markdown]
# # Deep dives
#
# What does a median see?

# %% tags=["demo"]
from pathlib import Path

samples = sorted(float(line) for line in Path("data/samples.txt").read_text().split())
print("the median is", samples[len(samples) // 2])
"""

CHANGES = """\
# Answers

## wrong/mean__forgets_to_divide
- expect: the sum was not divided by the count
```diff
-    return sum(values) / len(values)
+    return sum(values)
```

## wrong/mean__weighs_the_ends_twice
- expect: mean of 2 numbers
```diff
-    return sum(values) / len(values)
+    return sum(values) / len(values) if len(values) != 2 else max(values)
```

## wrong/rescale__divides_by_the_sum
- expect: divide by the peak
```diff
-    peak = np.abs(values).max(initial=0.0)
-    return values * (top / peak) if peak > TINY else values.copy()
+    return values * (top / values.sum())
```

## wrong/rescale__ignores_the_sign
- expect: the magnitude counts, not the sign
- fails: values
```diff
-    peak = np.abs(values).max(initial=0.0)
+    peak = values.max(initial=0.0)
```

## wrong/rescale__divides_by_zero
- expect: zeros have no peak to divide by
- fails: zeros
```diff
-    return values * (top / peak) if peak > TINY else values.copy()
+    with np.errstate(invalid="ignore", divide="ignore"):
+        return values * (top / peak)
```
"""

ACCEPTS_AN_EMPTY_LIST = """\
def mean(values):
    return sum(values) / max(len(values), 1)
"""

BY_STATISTICS = """\
def mean(values):
    import statistics

    if len(values) == 0:
        raise ValueError("values = []: nothing to average")
    return statistics.fmean(values)
"""


def whole(title: str, text: str, *keys: str) -> str:
    """The section of `answers.md` for an answer that is another program than the reference."""
    return "".join(f"{line}\n" for line in [f"## {title}", *keys, f"```python\n{text.rstrip()}\n```"])


def add_answers(lab: Lab, *sections: str) -> int:
    """Add sections to `answers.md`; returns the line of the last one."""
    path = lab.folder / "answers.md"
    path.write_text("\n".join([path.read_text(encoding="utf-8"), *sections]), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    return max(number for number, line in enumerate(lines, 1) if line.startswith("## "))


def remove_answer(lab: Lab, title: str) -> None:
    """Remove a section from `answers.md`."""
    path = lab.folder / "answers.md"
    before, _, after = path.read_text(encoding="utf-8").partition(f"## {title}\n")
    _, heading, rest = after.partition("\n## ")
    path.write_text(f"{before}{heading.lstrip()}{rest}", encoding="utf-8")


def make_course(root: Path, source: str = SOURCE) -> Lab:
    """Write `solutions/90_toy/` (source, data, wrong and right answers) below `root` and return its `Lab`."""
    lab = Lab(SLUG, root)
    lab.data.mkdir(parents=True)
    lab.source.write_text(source, encoding="utf-8")
    (lab.folder / "answers.md").write_text(CHANGES, encoding="utf-8")
    add_answers(
        lab,
        whole("wrong/mean__accepts_an_empty_list", ACCEPTS_AN_EMPTY_LIST, "- expect: ValueError"),
        whole("right/mean__by_statistics", BY_STATISTICS),
    )
    (lab.data / "samples.txt").write_text(SAMPLES)
    entry = {
        "file": "samples.txt",
        "bytes": len(SAMPLES),
        "sha256": hashlib.sha256(SAMPLES.encode()).hexdigest(),
        "source": "typed by hand",
        "licence": "CC0-1.0",
        "what": "three numbers",
    }
    (lab.data / "MANIFEST.json").write_text(json.dumps([entry], indent=2) + "\n")
    return lab


def add_dives(lab: Lab, text: str = DIVES) -> Lab:
    """Give the lab a second notebook; returns it."""
    core, *_ = lab.notebooks
    (lab.folder / f"{lab.slug}_dives.py").write_text(text, encoding="utf-8")
    return core.notebooks[1]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def add_data(lab: Lab, name: str, content: bytes) -> None:
    """Put a file into the lab's data folder and list it as the manifest asks."""
    (lab.data / name).write_bytes(content)
    manifest = lab.data / "MANIFEST.json"
    entry = {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entries = [*json.loads(manifest.read_text()), entry | {"source": "made here", "licence": "CC0-1.0", "what": "test"}]
    manifest.write_text(json.dumps(entries))


def make_tensor_course(root: Path) -> Lab:
    """The toy lab with a setup cell that imports torch and the virtual cluster, as in labs whose tests run on ranks."""
    more = "import numpy as np\nimport torch\nimport threeloops.training.cluster\n"
    return make_course(root, SOURCE.replace("import numpy as np\n", more, 1))
