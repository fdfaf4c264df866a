"""What a save costs beside its bytes: the copy for a save in the background, checksums, and objects per tensor."""

import gc
import hashlib
import subprocess
import sys
import threading

import pytest
import torch
from threeloops.training.checkpoint import Checkpointer, CheckpointError, LocalStore, saving, writer
from threeloops.training.checkpoint.manifest import BLOCK, decode


def test_the_copy_is_made_of_chunks_whose_ends_need_not_fit(monkeypatch):
    monkeypatch.setattr(saving, "_CHUNK", 1000)
    generator = torch.Generator().manual_seed(0)
    tensors = {size: torch.randn(size, generator=generator) for size in (1, 249, 250, 251, 5000)}
    tensors["turned"] = torch.randn(30, 40, generator=generator).T
    tensors["none"] = torch.zeros(0)
    copies = saving.Staging().copy(tensors)
    assert copies.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(copies[name], tensor) and copies[name].data_ptr() != tensor.data_ptr() or name == "none"


def test_several_threads_share_the_copy(monkeypatch):
    """Each waits for the others with a chunk in its hands, so one thread alone would never get the second chunk."""
    monkeypatch.setattr(saving, "_CHUNK", 100)
    monkeypatch.setattr(saving, "workers", lambda: 3)
    meeting = threading.Barrier(3, timeout=10)
    copyto = saving.np.copyto
    monkeypatch.setattr(saving.np, "copyto", lambda place, octets: (meeting.wait(), copyto(place, octets)))
    value = torch.arange(75.0)  # three chunks
    assert torch.equal(saving.Staging().copy({"w": value})["w"], value)


AFTER_THE_MAIN_THREAD = """
import sys, threading, torch
from threeloops.training.checkpoint import Checkpointer, LocalStore
def train():
    threading.main_thread().join()
    checkpointer = Checkpointer(LocalStore(sys.argv[1]))
    checkpointer.save_async(1, {"w": torch.arange(1_000_000)})
    checkpointer.wait()
threading.Thread(target=train).start()
"""


def test_a_thread_that_trains_on_after_the_main_thread_can_save(tmp_path):
    """Pools of threads accept no work then."""
    script = [sys.executable, "-c", AFTER_THE_MAIN_THREAD, tmp_path]
    run = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert run.stderr == "" and torch.equal(
        Checkpointer(LocalStore(tmp_path)).load().state["w"], torch.arange(1_000_000)
    )


class Copied(saving.Staging):
    """Says what the thread of the save does while the copy is made."""

    def copy(self, tensors):
        names = [thread.name for thread in threading.enumerate()]
        assert "save of step 1" in names, "its thread is made before the copy, since making one yields to it"
        assert not self.begun
        return super().copy(tensors)


def test_the_thread_of_a_save_exists_before_the_copy_and_writes_after_it(tmp_path, monkeypatch):
    checkpointer = Checkpointer(LocalStore(tmp_path))
    checkpointer._staging = Copied()
    checkpointer._staging.begun = begun = []
    write = saving.write_part
    monkeypatch.setattr(saving, "write_part", lambda *arguments: (begun.append(1), write(*arguments))[1])
    checkpointer.save_async(1, {"w": torch.ones(3)})
    checkpointer.wait()
    assert begun and Checkpointer(LocalStore(tmp_path)).load().step == 1


def test_a_copy_that_fails_ends_the_thread_of_its_save(tmp_path, monkeypatch):
    checkpointer = Checkpointer(LocalStore(tmp_path))

    def fail(self, tensors):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(saving.Staging, "copy", fail)
        checkpointer.save_async(1, {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match="step 1 was not saved: rank 0: MemoryError: no room"):
        checkpointer.wait()
    assert not [thread for thread in threading.enumerate() if thread.name == "save of step 1"]
    checkpointer.save(2, {"w": torch.ones(3)})
    assert Checkpointer(LocalStore(tmp_path)).load().step == 2


def test_every_block_has_the_checksum_of_its_bytes_whether_it_shares_a_job_or_not(tmp_path):
    generator = torch.Generator().manual_seed(0)
    sizes = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, *range(100, 140)]
    state = {f"w{size}": torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes}
    Checkpointer(LocalStore(tmp_path)).save(1, state)
    manifest = decode((tmp_path / "step-00000001/manifest.json").read_bytes())
    data = (tmp_path / "step-00000001/rank-00000.safetensors").read_bytes()
    for name, tensor in state.items():
        (piece,) = manifest.tensors[name].pieces
        octets = bytes(tensor.numpy())
        for number, block in enumerate(piece.blocks):
            written = data[block.offset : block.offset + block.length]
            assert written == octets[number * BLOCK : (number + 1) * BLOCK]
            assert block.checksum == hashlib.sha256(written).digest()


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_a_save_ends_however_many_cores_there_are(tmp_path, monkeypatch, cores):
    """One thread of the checksums waits for the end of the writing, and there may be no other."""
    monkeypatch.setattr(writer, "workers", lambda: cores)
    checkpointer = Checkpointer(LocalStore(tmp_path))
    for step in (1, 2, 3):  # full, unchanged and with a change
        checkpointer.save(step, {"a": torch.arange(600_000.0), "b": torch.full((5,), float(step // 3))})
    assert torch.equal(Checkpointer(LocalStore(tmp_path)).load().state["b"], torch.ones(5))


def test_what_is_kept_for_a_tensor_is_little_to_the_garbage_collector(tmp_path):
    """With hundreds of thousands of tensors it otherwise takes more time than the save."""
    checkpointer, count = Checkpointer(LocalStore(tmp_path)), 3000
    state = {f"w{number}": torch.ones(2) for number in range(count)}
    gc.collect()
    before = len(gc.get_objects())
    checkpointer.save(1, state)
    gc.collect()
    assert len(gc.get_objects()) - before < count / 10
