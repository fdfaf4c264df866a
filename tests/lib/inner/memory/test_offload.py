"""Offloaded optimizer state: the resident optimizer's bits, files that are checked, and a time that adds up."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware import device
from threeloops.inner.memory import LiveStorage
from threeloops.inner.memory.offload import (
    FileStore,
    HostStore,
    OffloadedAdamW,
    Rates,
    StateFileError,
    ThreadChannel,
    TornStateError,
    chunks_of,
    step_seconds,
)

SHAPES = [(33, 17), (129,), (1,), (40, 50)]
OPTIONS = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).to(device()).requires_grad_() for s in SHAPES]


def give_gradients(weights, step):
    generator = torch.Generator().manual_seed(100 + step)
    for weight in weights:
        scale = 10.0 ** (step % 5 - 3)
        weight.grad = (scale * torch.randn(weight.shape, generator=generator)).to(weight.dtype).to(weight.device)


@pytest.fixture(params=["host", "files"])
def store(request, tmp_path):
    return HostStore() if request.param == "host" else FileStore(tmp_path / "states")


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_steps_are_those_of_the_resident_optimizer_to_the_last_bit(store, buffers, chunk):
    ours, theirs = parameters(), parameters()
    if chunk == 1:
        ours, theirs = ours[1:3], theirs[1:3]
    offloaded = OffloadedAdamW(ours, **OPTIONS, store=store, buffers=buffers, chunk_elements=chunk)
    resident = torch.optim.AdamW(theirs, **OPTIONS, foreach=False)
    for step in range(8):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        offloaded.step()
        resident.step()
    offloaded.close()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    for kind in ("exp_avg", "exp_avg_sq"):
        kept = torch.cat([resident.state[p][kind].reshape(-1) for p in theirs]).cpu()
        assert torch.equal(store.states[kind], kept)


def test_masters_are_a_float32_optimizer_behind_bfloat16_parameters(store):
    ours = parameters(torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in ours]
    offloaded = OffloadedAdamW(ours, **OPTIONS, store=store, masters=True, chunk_elements=100)
    resident = torch.optim.AdamW(masters, **OPTIONS, foreach=False)
    for step in range(5):
        give_gradients(ours, step)
        for master, weight in zip(masters, ours, strict=True):
            master.grad = weight.grad.float()
        offloaded.step()
        resident.step()
    for a, b in zip(ours, masters, strict=True):
        assert torch.equal(a, b.bfloat16())


def test_training_goes_on_from_the_files_of_another_program(tmp_path):
    straight, broken = parameters(), parameters()
    whole = OffloadedAdamW(straight, **OPTIONS)
    first = OffloadedAdamW(broken, **OPTIONS, store=FileStore(tmp_path))
    for step in range(6):
        give_gradients(straight, step)
        whole.step()
    for step in range(3):
        give_gradients(broken, step)
        first.step()
    first.save()
    first.close()
    second = OffloadedAdamW(broken, **OPTIONS, store=FileStore(tmp_path))
    assert second.steps == 3
    for step in range(3, 6):
        give_gradients(broken, step)
        second.step()
    for a, b in zip(straight, broken, strict=True):
        assert torch.equal(a, b)


def saved(folder):
    optimizer = OffloadedAdamW(parameters(), store=FileStore(folder), masters=True)
    give_gradients(optimizer.parameters, 0)
    optimizer.step()
    optimizer.save()
    optimizer.close()


DAMAGE = {
    "missing file": (lambda f: (f / "exp_avg.bin").unlink(), "exp_avg.bin is missing"),
    "cut off": (lambda f: (f / "master.bin").write_bytes((f / "master.bin").read_bytes()[:-4]), "it was cut off"),
    "one bit": (lambda f: flip(f / "exp_avg_sq.bin"), "checksum"),
    "no manifest": (lambda f: (f / "states.json").unlink(), "states.json is missing"),
    "half a manifest": (lambda f: (f / "states.json").write_text('{"step": 1,'), "cannot be read"),
    "other format": (lambda f: edit(f / "states.json", dtype="float16"), "dtype = 'float16'"),
    "other model": (lambda f: edit(f / "states.json", shapes=[[7]]), r"shapes\[0\] = \[7\], expected \[33, 17\]"),
    "a parameter less": (lambda f: edit_shapes(f, lambda s: s[:-1]), r"shapes\[3\] = None, expected \[40, 50\]"),
    "a parameter more": (lambda f: edit_shapes(f, lambda s: [*s, [2]]), r"shapes\[4\] = \[2\], expected None"),
    "other order": (lambda f: edit_shapes(f, lambda s: s[::-1]), r"shapes\[0\] = \[40, 50\]"),
    "transposed": (lambda f: edit_shapes(f, lambda s: [s[0][::-1], *s[1:]]), r"shapes\[0\] = \[17, 33\]"),
    "a list": (lambda f: (f / "states.json").write_text("[]"), "cannot be read"),
    "no step": (lambda f: edit(f / "states.json", step=None), "step = None"),
    "step in quotes": (lambda f: edit(f / "states.json", step="7"), "step = '7'"),
    "step before the first": (lambda f: edit(f / "states.json", step=-1), "step = -1"),
    "no checksums": (lambda f: edit(f / "states.json", crc32=None), "crc32 = None"),
    "checksums of no states": (lambda f: edit(f / "states.json", crc32=[1, 2, 3]), r"crc32 = \[1, 2, 3\]"),
    "one checksum missing": (lambda f: edit(f / "states.json", crc32={"exp_avg": 1}), "holds exp_avg, expected"),
    "shapes that are sizes": (lambda f: edit(f / "states.json", shapes=[8, 3]), r"shapes = \[8, 3\]"),
}


def flip(path):
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_shapes(folder, change):
    edit(folder / "states.json", shapes=change([list(shape) for shape in SHAPES]))


@pytest.mark.parametrize(("damage", "names"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_state_is_named_and_never_used(tmp_path, damage, names):
    saved(tmp_path)
    damage(tmp_path)
    with pytest.raises(StateFileError, match=names):
        OffloadedAdamW(parameters(), store=FileStore(tmp_path), masters=True)


@pytest.mark.parametrize("masters", [True, False])
def test_states_are_not_opened_by_an_optimizer_that_keeps_others(tmp_path, masters):
    OffloadedAdamW(parameters(), store=FileStore(tmp_path), masters=masters).close()
    with pytest.raises(StateFileError, match="holds exp_avg, exp_avg_sq(, master)?, expected"):
        OffloadedAdamW(parameters(), store=FileStore(tmp_path), masters=not masters)


def test_a_store_that_was_opened_and_never_stepped_is_opened_again(tmp_path):
    for weights in (parameters(), [p.detach() + 1 for p in parameters()]):
        optimizer = OffloadedAdamW(weights, store=FileStore(tmp_path), masters=True)
        optimizer.close()
        assert optimizer.steps == 0
        assert torch.equal(optimizer.store.states["master"], torch.cat([p.detach().reshape(-1).cpu() for p in weights]))


def test_a_store_is_saved_after_it_was_opened():
    with pytest.raises(StateFileError, match="open it first"):
        FileStore("nowhere").save(1)


class FailingChannel(ThreadChannel):
    """Its copy number `fails`, counted from 0, is not made."""

    def __init__(self, fails):
        super().__init__()
        self.copies, self.fails = 0, fails

    def submit(self, pairs):
        number, self.copies = self.copies, self.copies + 1
        return super().submit(pairs) if number != self.fails else self.fail

    def fail(self):
        raise OSError("no space left on device")


COPIES_OF_A_STEP = 2 * len(chunks_of([33 * 17, 129, 1, 40 * 50], 500))


@pytest.mark.parametrize("fails", range(COPIES_OF_A_STEP, 2 * COPIES_OF_A_STEP, 3))
def test_a_step_that_failed_is_neither_counted_nor_saved_nor_gone_on_from(tmp_path, fails):
    weights = parameters()
    optimizer = OffloadedAdamW(weights, store=FileStore(tmp_path), chunk_elements=500, channel=FailingChannel(fails))
    give_gradients(weights, 0)
    optimizer.step()
    optimizer.save()
    with pytest.raises(OSError, match="no space left"):
        optimizer.step()
    assert optimizer.steps == 1
    at_failure = [w.detach().clone() for w in weights]
    for act in (optimizer.step, optimizer.save):
        with pytest.raises(TornStateError, match="step 2 failed half-way.*load the weights and the state of a save"):
            act()
    assert all(map(torch.equal, at_failure, weights))
    optimizer.close()
    assert json.loads((tmp_path / "states.json").read_text())["step"] == 1


def test_a_torn_state_in_files_is_not_opened_again(tmp_path):
    weights = parameters()
    channel = FailingChannel(2 * COPIES_OF_A_STEP - 1)
    optimizer = OffloadedAdamW(weights, store=FileStore(tmp_path), chunk_elements=500, channel=channel)
    give_gradients(weights, 0)
    optimizer.step()
    optimizer.save()
    with pytest.raises(OSError, match="no space left"):
        optimizer.step()
    optimizer.close()
    with pytest.raises(StateFileError, match="changed after its last save"):
        OffloadedAdamW(weights, store=FileStore(tmp_path))


def test_after_close_no_step_is_taken_and_the_last_one_can_be_saved(store):
    weights = parameters()
    optimizer = OffloadedAdamW(weights, store=store)
    give_gradients(weights, 0)
    optimizer.step()
    before = [w.detach().clone() for w in weights]
    optimizer.close()
    optimizer.close()
    with pytest.raises(RuntimeError, match="closed.*make a new OffloadedAdamW"):
        optimizer.step()
    assert optimizer.steps == 1 and all(map(torch.equal, before, weights))
    optimizer.save()
    if isinstance(store, FileStore):
        assert OffloadedAdamW(weights, store=FileStore(store.folder)).steps == 1


def test_a_gradient_that_is_missing_tears_nothing():
    weights = parameters()
    optimizer = OffloadedAdamW(weights)
    with pytest.raises(ValueError, match=r"parameters\[0\].grad"):
        optimizer.step()
    give_gradients(weights, 0)
    optimizer.step()
    assert optimizer.steps == 1


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(TypeError, match="torch.float64.*at most 4 bytes"):
        OffloadedAdamW(parameters(torch.float64), masters=True)
    with pytest.raises(ValueError, match="no element"):
        OffloadedAdamW([torch.zeros(0), torch.zeros(3, 0)])
    with pytest.raises(TypeError, match="torch.bfloat16.*masters=True"):
        OffloadedAdamW(parameters(torch.bfloat16))
    with pytest.raises(ValueError, match="buffers = 0"):
        OffloadedAdamW(parameters(), buffers=0)
    with pytest.raises(ValueError, match="chunk_elements = 0"):
        OffloadedAdamW(parameters(), chunk_elements=0)
    with pytest.raises(ValueError, match="parameters is empty"):
        OffloadedAdamW([])
    optimizer = OffloadedAdamW(parameters())
    with pytest.raises(ValueError, match=r"parameters\[0\].grad"):
        optimizer.step()
    assert optimizer.steps == 0
    with pytest.raises(ValueError, match="bytes_per_second"):
        ThreadChannel(0)
    with pytest.raises(ValueError, match="update = 0"):
        Rates(1, 1, 0)


def test_beside_the_parameters_live_only_the_buffers_and_one_chunks_temporaries():
    weights = parameters()
    optimizer = OffloadedAdamW(weights, chunk_elements=100)
    give_gradients(weights, 0)
    states = [s.untyped_storage()._cdata for s in optimizer.store.states.values()]
    with LiveStorage() as live:
        optimizer.step()
    stored = sum(s.nbytes for s in optimizer.store.states.values())
    known = stored * (device() == "cpu") + 2 * sum(w.nbytes for w in weights)  # the store, weights and gradients
    staging = 2 * 2 * 100 * 4
    assert len(states) == 2
    assert live.timeline.peak_bytes <= known + staging + 4 * 100 * 4


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 20))
def test_chunks_cover_every_element_once_in_order(sizes, largest):
    at = 0
    for chunk in chunks_of(sizes, largest):
        assert chunk.offset == at and 0 < chunk.elements <= largest
        assert chunk.first + chunk.elements <= sizes[chunk.parameter]
        at += chunk.elements
    assert at == sum(sizes)


bandwidth = st.floats(1, 1e3)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=12), bandwidth, bandwidth, bandwidth)
def test_a_step_lies_between_the_larger_part_and_the_sum_of_all(sizes, fetch, write, update):
    rates, total = Rates(fetch, write, update), sum(sizes)
    channel, work = total / fetch + total / write, total / update
    alone, double, triple = (step_seconds(sizes, rates, buffers=n) for n in (1, 2, 3))
    assert alone == pytest.approx(channel + work)
    assert max(channel, work) * (1 - 1e-9) <= triple <= double * (1 + 1e-9) <= alone * (1 + 2e-9)


def test_many_equal_chunks_hide_all_of_the_shorter_part():
    rates = Rates(fetch=10, write=10, update=4)
    assert step_seconds([1.0] * 100, rates, buffers=2) == pytest.approx(100 / 4 + 2 / 10, rel=0.02)
