"""Losses that are known: the same bits, or the first step that differs and why that may be."""

import json
import math
import platform
import struct

import numpy as np
import pytest
import torch
from elastic_training import batch, loss_of, model
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.elastic.detection import compare, environment, run_canary, store_canary


def losses(steps, fault=None):
    """Training of the small model; `fault` is a step in which the machine gets a weight wrong by one bit."""
    net, found = model(), []
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    for step in range(steps):
        adam.zero_grad()
        loss = loss_of(net, batch(step))
        loss.backward()
        adam.step()
        found.append(loss.item())
        if step == fault:
            net[0].weight.data.view(torch.int64)[0, 0] ^= 1 << 30
    return found


def test_the_same_program_on_the_same_machine_gives_the_same_bits(tmp_path):
    store_canary(tmp_path / "canary.json", losses(6))
    assert run_canary(tmp_path / "canary.json", losses) is None
    data = json.loads((tmp_path / "canary.json").read_text())
    assert data["environment"] == environment() and len(data["losses"]) == 6
    assert [each.name for each in tmp_path.iterdir()] == ["canary.json"]


def test_a_flipped_bit_shows_in_the_next_step_and_the_machine_is_suspected(tmp_path):
    store_canary(tmp_path / "canary.json", losses(6))
    found = run_canary(tmp_path / "canary.json", lambda steps: losses(steps, fault=2))
    assert found.step == 3 and found.stored == losses(6)[3] and found.ulps > 0 and found.changed == {}
    assert abs(found.found / found.stored - 1) < 1e-6, "too small to be seen in a curve"
    assert "step 3" in str(found) and "suspect this machine" in str(found)


def test_what_changed_in_the_environment_is_named():
    before = {**environment(), "torch": "2.0.1"}
    del before["python"]
    found = compare([1.0, 2.0], [1.0, 2.5], before)
    assert found.changed.keys() == {"torch", "python"} and found.changed["torch"] == ("2.0.1", torch.__version__)
    assert "torch: 2.0.1 before" in str(found) and "suspect" not in str(found)
    assert compare([1.0], [1.0], before) is None, "a change that changes no loss is none"


def test_the_processor_and_how_float32_is_multiplied_are_part_of_the_environment():
    before = environment()
    assert before["cpu"] and before["cpu"] != platform.machine() and platform.node() not in before.values()
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium" if precision != "medium" else "highest")
        found = compare([1.0], [1.5], before)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert "float32 on the cpu" in found.changed and "suspect" not in str(found)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_on_a_gpu_there_are_its_libraries_and_its_tf32_setting_too(on_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = environment()
    assert ({"gpu", "cuda", "cudnn", "float32 on the gpu"} <= found.keys()) == on_gpu
    assert all(isinstance(text, str) for text in found.values())


@given(st.floats(allow_nan=False), st.integers(-1000, 1000))
def test_ulps_are_floats_in_between(a, steps):
    b = a
    for _ in range(abs(steps)):
        b = math.nextafter(b, math.inf if steps > 0 else -math.inf)
    found = compare([a], [b], {})
    if struct.pack("d", a) == struct.pack("d", b):
        assert found is None
    elif not math.isinf(b):
        zeros = (a < 0 < b) or (b < 0 < a)
        assert abs(found.ulps - abs(steps)) <= zeros + (a == 0 or b == 0)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 50))
def test_losses_of_float32_are_counted_in_floats_of_float32(a, steps):
    b = np.float32(a)
    for _ in range(steps):
        b = np.nextafter(b, np.float32(np.inf))
    if np.isfinite(b):
        found = compare([a], [float(b)], {})
        assert abs(found.ulps - steps) <= (a <= 0 <= float(b))


def test_nan_is_equal_to_itself_and_far_from_all_numbers():
    assert compare([math.nan], [math.nan], {}) is None
    assert compare([1.0], [math.nan], {}).ulps == 2**63
    assert compare([0.0], [-0.0], {}).ulps == 0, "another bit, though the same number"


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one step or more"):
        store_canary(tmp_path / "x", [])
    with pytest.raises(ValueError, match="1 losses for 2"):
        compare([1.0, 2.0], [1.0], {})
