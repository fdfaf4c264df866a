# ---
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
#     title: Can this machine teach me? Deep dives
#     minutes: 40
# ---

# %% [markdown]
# # Can this machine teach me? Deep dives
#
# These sections are complete and ungraded. The first two take the recording of the lab apart and find two effects that the
# model of `predict_seconds` does not have. The third runs a GPU kernel on your CPU, and the last explains how grading works.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import os
import statistics
from pathlib import Path

from threeloops.lab import check, figure, palette, predict, reveal, show, term

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported and when a kernel is defined
RECORDING = json.loads(Path("data/saxpy_samples.json").read_text())


def medians(operation, dtype):
    """Recorded seconds by number of elements."""
    chosen = (s for s in RECORDING["samples"] if (s["operation"], s["dtype"]) == (operation, dtype))
    return {s["n"]: statistics.median(s["seconds"]) for s in chosen}


def draw_ratio(numerator, denominator, expected, said, label, title):
    plot, axes = figure(height=3.2)
    axes.plot(list(numerator), [numerator[n] / denominator[n] for n in numerator], "o-", color=palette.blue)
    axes.axhline(expected, color=palette.orange, ls="--")
    axes.text(1, expected - 0.03, said, color=palette.orange, va="top")
    axes.set(xscale="log", ylim=(0, 1.75), xlabel="elements", ylabel=label)
    axes.set_title(title)
    return plot


# %% [markdown]
# ## A copy is not cheaper than SAXPY
#
# A copy, `y[i] = x[i]`, reads one vector and writes one, so it has two streams. SAXPY moves three. On large vectors a copy
# should therefore take two thirds of the time. The recording holds copies of the same sizes.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "copy_ratio",
    "Time of a copy divided by the time of SAXPY, for 2²⁶ float32 elements on the recorded core?",
    axis=(0.2, 2.0),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
copies, saxpys = medians("copy", "float32"), medians("saxpy", "float32")
largest = max(copies)
with reveal("copy_ratio"):
    title = "Counted and recorded traffic of a copy differ"
    show.figure(draw_ratio(copies, saxpys, 2 / 3, "two streams over three", "copy ÷ SAXPY", title))
assert 0.8 < copies[largest] / saxpys[largest] < 1.25, "three streams in a copy: two would give 0.67"
show.against_prediction("copy_ratio", copies[largest] / saxpys[largest], source="recorded on a 2-core cloud machine")

# %% [markdown]
# On tiny vectors the ratio compares two overheads, and is close to two thirds by accident. Inside the cache the copy is
# the cheaper one. When both stream from main memory, a copy takes as long as SAXPY, or a little longer. The main reason
# is that a CPU core cannot write part of a cache line that it does not hold. Before it overwrites y it *reads* y, a
# line at a time, only to throw the old values away. This *write-allocate* read is the third stream. SAXPY needs y
# anyway and pays nothing extra.
#
# So the least traffic of an operation is a lower bound, and the traffic of a real program may lie above it. Special store
# instructions avoid the read, and a GPU's cache takes a whole sector without it. Whenever a measured bandwidth looks a third
# too low, count the streams again.
#
# ## Half the bytes, and no faster
#
# In float16 SAXPY moves half the bytes of float32, so the model predicts half the time.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "half_time",
    "SAXPY on 250,000 elements, which fit into the cache: how does float16 compare with float32 on the recorded core?",
    options=("half the time", "about the same", "slower"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
halves, saxpys = medians("saxpy", "float16"), medians("saxpy", "float32")
with reveal("half_time"):
    show.figure(draw_ratio(halves, saxpys, 0.5, "half the bytes", "float16 ÷ float32", "Half precision on a CPU core"))
assert halves[250_000] / saxpys[250_000] > 1.15, "inside the cache float16 is the slower one"
show.against_prediction("half_time", "slower", source="recorded on a 2-core cloud machine")

# %% [markdown]
# On tiny vectors the overhead hides everything. Far outside the cache the model is right: half the bytes take half the time.
# In between, float16 is the *slower* one. PyTorch does no float16 arithmetic on this core: every element is widened to
# float32, computed, and rounded back, and inside the cache those conversions take longer than moving the bytes. The
# model of this lab has no term for arithmetic. The next lab adds it, and calls the result the roofline.
#
# ## A GPU kernel on your CPU
#
# SAXPY as a GPU **kernel** in Triton looks like this. On a GPU thousands of programs run this function at once, each on its
# own block of the vectors. Triton's interpreter runs them one after another on the CPU. You will write such kernels
# from lab 02 on.

# %% tags=["demo"]
import torch
import triton
import triton.language as tl


@triton.jit
def saxpy_kernel(a, x, y, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    result = a * tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside)
    tl.store(y + index, result, mask=inside)


x, y = torch.linspace(0, 1, 1000), torch.ones(1000)
expected = 2.5 * x + y
saxpy_kernel[(triton.cdiv(1000, 256),)](2.5, x, y, 1000, BLOCK=256)
check.close(y, expected, what="SAXPY by four interpreted programs")
print("four programs of 256 elements, the last of them partly masked: all 1,000 results agree")
term("interpreter")

# %% [markdown]
# ## Why grading has a wall
#
# When you run a check in the notebook, your function and the test share one process. That is quick, and for learning it is
# all you need. When a course grades your notebook they do not share one: your code runs in a sandbox, the tests run in another
# process, and only plain data passes between them: numbers, text, lists, tuples, dictionaries, arrays, tensors, and the records
# that setup cells define.
#
# The reason is fairness. If tests and answers share a process, an answer can read the tests, change them, or print its
# own score. Three things follow for you.
#
# - **Return what the specification says.** What you print is for you, and nobody grades it.
# - **The visible check is not the whole check.** It shows every rule of the specification; hidden cases try the same rules on
#   other sizes and inputs.
# - **Some modules are withheld.** The library holds worked answers, and each lab names the modules that do not exist in a graded
#   run. On your own machine nothing is withheld: try first, then look.
#
# A cell that crashes loses its own points. The others are still graded.
