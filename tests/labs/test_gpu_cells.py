"""Cells of the labs that measure only on a GPU: their own text runs to its end on a device that only has shapes."""

import builtins
from unittest.mock import MagicMock

import jupytext
import pytest
import torch
from lab_source import SOLUTIONS, execute
from threeloops.inner import timing
from torch.overrides import TorchFunctionMode

CELLS = {  # by notebook
    "02_memory_hierarchy": ("def time_of(elements, block)", "mem-6"),
    "04_flash_attention_dives": ("def make_heads(tokens)", "att-3"),
}


class OnlyShapes(TorchFunctionMode):
    """Tensors that are asked for on "cuda" are made without memory."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


class Names(dict):
    """The names of the lab that a cell uses besides those that its test gives."""

    def __missing__(self, name):
        if hasattr(builtins, name):
            raise KeyError(name)
        return self.setdefault(name, MagicMock(name=name))


def took_a_millisecond(call):
    call()
    return 1e-3


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_for_a_gpu_measures_and_settles_its_claim(name, monkeypatch):
    words, claim = CELLS[name]
    (source,) = SOLUTIONS.glob(f"*/{name}.py")
    notebook = jupytext.read(source, fmt="py:percent")
    (cell,) = (cell.source for cell in notebook.cells if cell.cell_type == "code" and words in cell.source)
    monkeypatch.setattr(timing, "_clock_of", lambda device: took_a_millisecond)
    monkeypatch.setattr(timing, "_cache_flusher", lambda device: lambda: None)
    monkeypatch.setattr(timing, "_launch_cover", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU of shapes")
    given = {
        "device": lambda: "cuda",
        "torch": torch,
        "progress": lambda items, *_: items,
        "figure": lambda **_: (MagicMock(), MagicMock()),
        "audit": MagicMock(),
    }
    with OnlyShapes():
        execute(cell, f"<{name} on a GPU>", Names(given))
    assert [call.args[0] for call in given["audit"].call_args_list] == [claim]
    assert given["audit"].call_args.args[3] == "GPU"
