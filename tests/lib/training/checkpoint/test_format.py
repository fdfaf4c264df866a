"""The files are safetensors: its own reader reads every type that we write, and finds tensors aligned."""

import json

import pytest
import safetensors
import torch
from safetensors.torch import load_file
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.format import DTYPES, bytes_of, header


def of_every_type():
    octets = torch.randint(0, 2, (3 * 5 * 8,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {f"tensor {n}": octets.view(dtype)[:15].view(3, 5) for n, dtype in enumerate(DTYPES.values())}


def test_safetensors_reads_what_we_write(tmp_path):
    state = {**of_every_type(), "scalar": torch.tensor(2.5), "ünïcode\n": torch.arange(3), "step": 7}
    Checkpointer(LocalStore(tmp_path)).save(7, state)
    path = tmp_path / "step-00000007/rank-00000.safetensors"
    found = load_file(path)
    assert found.keys() == state.keys() - {"step"}
    for name, tensor in found.items():
        assert tensor.dtype == state[name].dtype and tensor.shape == state[name].shape
        assert bytes(bytes_of(tensor)) == bytes(bytes_of(state[name])), name
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_every_tensor_lies_where_its_type_may_be_read_in_place(tmp_path):
    Checkpointer(LocalStore(tmp_path)).save(1, of_every_type())
    data = (tmp_path / "step-00000001/rank-00000.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 64 == 0
    described = json.loads(data[8 : 8 + length])
    del described["__metadata__"]
    ends = 0
    for each in described.values():
        begin, end = each["data_offsets"]
        assert begin == ends and begin % DTYPES[each["dtype"]].itemsize == 0
        ends = end
    assert 8 + length + ends == len(data)


def test_a_key_stands_once():
    with pytest.raises(ValueError, match="'a' appears twice"):
        header([("a", "F32", (1,)), ("a", "F32", (1,))], {})


def test_bytes_are_not_copied():
    tensor = torch.zeros(3, dtype=torch.int16)
    bytes_of(tensor)[2:4] = b"\x01\x02"
    assert tensor.tolist() == [0, 0x201, 0]


def test_a_type_that_the_format_does_not_have_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="rank 0: torch.complex128: safetensors has"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"x": torch.zeros(2, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []
