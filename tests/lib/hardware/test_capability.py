"""What a machine can teach: the report of synthetic machines, CUDA_VISIBLE_DEVICES, and the probe of this one."""

import dataclasses
import os
import subprocess
import sys
from importlib import metadata, util

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from threeloops.hardware.capability import Gpu, Machine, capabilities, probe, runs_on, visible_devices
from threeloops.hardware.probe import _parse_nvidia_smi

H200 = Gpu("NVIDIA H200", (9, 0), 141 * 2**30, "GPU-aa11")
A100 = Gpu("NVIDIA A100", (8, 0), 80 * 2**30, "GPU-ab22")
V100 = Gpu("Tesla V100", (7, 0), 32 * 2**30, "GPU-cd33")
T4 = Gpu("Tesla T4", (7, 5), 15 * 2**30, "GPU-ef44")

LAPTOP = Machine(
    python="3.12.4",
    platform="linux-x86_64",
    cores=8,
    memory_bytes=16 * 2**30,
    torch="2.13.0+cpu",
    triton="3.7.1",
    numpy="2.4.6",
    cxx="g++",
    ptxas=True,
    gloo=True,
)
SERVER = dataclasses.replace(
    LAPTOP,
    torch="2.13.0",
    torch_cuda="13.0",
    supported_archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    gpus=(H200, A100),
    driver="580.65.06",
)


def report(machine, **changes):
    return capabilities(dataclasses.replace(machine, **changes))


def test_a_laptop_without_a_gpu_teaches_everything_but_the_gpu():
    verdicts = {name: capability.available for name, capability in capabilities(LAPTOP).items()}
    assert verdicts == {"interpreter": True, "compiler": True, "ranks": True, "gpu": False}
    assert "no NVIDIA GPU found" in capabilities(LAPTOP).gpu.detail


def test_a_server_with_two_gpus_uses_both_in_order():
    assert capabilities(SERVER).gpu.available
    assert capabilities(SERVER).usable_devices == (0, 1)
    assert "cuda:1 = NVIDIA A100 (sm_80, 80 GiB)" in capabilities(SERVER).gpu.detail


def test_the_visible_order_is_the_numbering():
    swapped = report(SERVER, cuda_visible_devices="1,0")
    assert swapped.usable_devices == (1, 0)
    assert "cuda:0 = NVIDIA A100" in swapped.gpu.detail


@pytest.mark.parametrize(
    ("changes", "capability", "words"),
    [
        ({"triton": None}, "interpreter", "needs triton"),
        ({"torch": None, "numpy": None}, "interpreter", "needs torch and numpy"),
        ({"triton": "3.6.0", "numpy": "2.4.1"}, "interpreter", "numpy<2.4"),
        ({"triton": None}, "compiler", "no triton"),
        ({"ptxas": False}, "compiler", "ptxas"),
        ({"cxx": None}, "compiler", "apt install g++"),
        ({"gloo": False}, "ranks", "gloo"),
        ({"torch": None}, "ranks", "torch"),
        ({"gpus": ()}, "gpu", "no NVIDIA GPU"),
        ({"torch": None, "torch_cuda": None}, "gpu", "needs torch"),
        ({"torch_cuda": None, "torch": "2.13.0+cpu"}, "gpu", "built without CUDA"),
        ({"driver": "570.86.15"}, "gpu", "needs 580"),
        ({"cuda_visible_devices": ""}, "gpu", "CUDA_VISIBLE_DEVICES=''"),
        ({"cuda_visible_devices": "2"}, "gpu", "CUDA_VISIBLE_DEVICES='2'"),
        ({"gpus": (V100,)}, "gpu", "Tesla V100 (sm_70, 32 GiB): torch 2.13.0 has kernels for sm_75"),
        ({"gpus": (V100,), "supported_archs": ()}, "gpu", "sm_75 and newer"),
        ({"gpus": (H200, V100), "cuda_visible_devices": "1"}, "gpu", "Tesla V100"),
    ],
)
def test_what_is_missing_is_named_with_its_reason(changes, capability, words):
    missing = dict(report(SERVER, **changes).items())[capability]
    assert not missing.available
    assert words in missing.detail


def test_triton_3_6_works_with_the_numpy_it_was_built_for():
    assert report(LAPTOP, triton="3.6.0", numpy="2.3.5").interpreter.available


def test_an_older_driver_is_enough_for_an_older_cuda():
    assert report(SERVER, torch_cuda="12.8", driver="570.86.15").gpu.available


def test_one_core_has_ranks_that_take_turns():
    single = report(LAPTOP, cores=1).ranks
    assert single.available
    assert "take turns" in single.detail


def test_an_old_gpu_beside_a_new_one_stays_visible_and_unused():
    mixed = report(SERVER, gpus=(V100, H200))
    assert mixed.visible_devices == (0, 1)
    assert mixed.usable_devices == (1,)
    assert "cuda:1 = NVIDIA H200" in mixed.gpu.detail


def test_turing_runs_torch_but_triton_does_not_promise_it():
    assert "Triton supports sm_80 and newer" in report(SERVER, gpus=(T4,)).gpu.detail
    assert "Triton supports" not in capabilities(SERVER).gpu.detail


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (10, 0), False),
        ("sm_100", (10, 0), True),
        ("sm_100", (10, 3), True),
        ("compute_90", (12, 0), True),
        ("compute_120", (10, 0), False),
        ("sm_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 3), True),
        ("compute_100f", (12, 0), False),
    ],
)
def test_machine_code_stays_in_its_major_version_and_ptx_goes_forward(arch, capability, runs):
    assert runs_on(arch, capability) is runs


def test_an_unknown_architecture_name_is_refused():
    with pytest.raises(ValueError, match="gfx942"):
        runs_on("gfx942", (9, 0))


@pytest.mark.skipif(
    not hasattr(torch.cuda, "_code_compatible_with_device"), reason="torch before 2.13 has no such table"
)
@pytest.mark.parametrize("code", [75, 80, 86, 89, 90, 100, 103, 120, 121])
@pytest.mark.parametrize("device", [70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121])
def test_runs_on_agrees_with_the_table_in_torch(code, device):
    assert runs_on(f"sm_{code}", divmod(device, 10)) == torch.cuda._code_compatible_with_device(device, code)


UUIDS = ["GPU-8932f937-d72c", "GPU-8932aaaa-0000", "GPU-11111111-2222", "GPU-deadbeef-0003"]


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("2,1", (2, 1)),
        ("0,2,-1,1", (0, 2)),
        ("-1", ()),
        ("0,9,1", (0,)),
        ("0,,1", (0,)),
        (" 3 , 0", (3, 0)),
        ("NoDevFiles", ()),
        ("1gpu,0", (1, 0)),
        ("0,0", ()),
        ("2,1,2", ()),
        ("GPU-8932f937", (0,)),
        ("GPU-1111,GPU-8932a", (2, 1)),
        ("GPU-8932,GPU-1111", ()),
        ("GPU-1111,GPU-ffff,GPU-dead", (2,)),
        ("GPU-1111,GPU-11111111", ()),
        ("GPU-1111,0", (2,)),
        ("0,GPU-1111", (0,)),
        ("MIG-1111,0", ()),
    ],
)
def test_visible_devices_follow_cudas_rules(variable, visible):
    assert visible_devices(variable, UUIDS) == visible


@given(ordinals=st.lists(st.integers(-2, 6), max_size=6), count=st.integers(1, 5))
def test_visible_ordinals_agree_with_torchs_parser(ordinals, count):
    outside = next((i for i, ordinal in enumerate(ordinals) if not 0 <= ordinal < count), len(ordinals))
    assume(
        len(set(ordinals[outside:])) == len(ordinals[outside:])
        and not set(ordinals[:outside]) & set(ordinals[outside:])
    )
    variable = ",".join(map(str, ordinals))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", variable)
        parsed = torch.cuda._parse_visible_devices()
    in_range = next((i for i, ordinal in enumerate(parsed) if ordinal >= count), len(parsed))
    assert visible_devices(variable, ["GPU-?"] * count) == tuple(parsed[:in_range])


def test_nvidia_smi_is_read_line_by_line():
    text = (
        "NVIDIA H200, 9.0, 143771, GPU-6b1f0c9e-1111, 580.65.06\n"
        "NVIDIA GB10, 12.1, [N/A], GPU-7c2e0c9e-2222, 580.65.06\n"
    )
    gpus, driver = _parse_nvidia_smi(text)
    assert gpus == (
        Gpu("NVIDIA H200", (9, 0), 143771 * 2**20, "GPU-6b1f0c9e-1111"),
        Gpu("NVIDIA GB10", (12, 1), 0, "GPU-7c2e0c9e-2222"),
    )
    assert driver == "580.65.06"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA-SMI has failed, 1, 2, 3, 4\n"])
def test_no_gpu_is_an_empty_list_and_not_an_error(text):
    assert _parse_nvidia_smi(text) == ((), None)


def test_the_probe_describes_this_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine = probe()
    assert machine.torch == torch.__version__
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_bytes > 2**28
    assert capabilities(machine).visible_devices == ()


def test_the_probe_survives_without_torch_triton_and_numpy(monkeypatch):
    def not_installed(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    bare = probe()
    assert (bare.torch, bare.triton, bare.numpy, bare.gloo, bare.ptxas) == (None, None, None, False, False)
    assert not any(capability.available for _, capability in capabilities(bare).items())


def test_importing_and_judging_needs_no_torch():
    code = (
        "import sys; from threeloops.hardware.capability import Machine, capabilities\n"
        "capabilities(Machine('3.12', 'linux', 1, 1)); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
