"""`TorchPeers` on real processes and gloo: what runs on the virtual cluster runs there as it is.

This file is also the program of a rank: `python test_peers.py <rank> <folder>`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from threeloops.training.collectives import (
    ALL_REDUCES,
    TorchPeers,
    all_to_all,
    broadcast,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_reduce_scatter,
)

RANKS, SECONDS = 3, 240
SIZES = (0, 2, 100_003)


def given(rank, elements):
    return torch.randn(elements, generator=torch.Generator().manual_seed(10 * rank + elements))


def program(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    peers, found = TorchPeers(), {}
    for elements in SIZES:
        for name, each in ALL_REDUCES.items():
            tensor = given(rank, elements)
            each.run(peers, tensor, "avg")
            found[name, elements] = tensor
        tensor = given(rank, 2 * elements)[::2]
        hierarchical_all_reduce(peers, tensor, 1)
        found["hierarchical", elements] = tensor
        out, gathered = torch.empty(len(tensor.tensor_split(RANKS)[rank])), torch.empty(elements)
        ring_reduce_scatter(peers, out, given(rank, elements))
        ring_all_gather(peers, gathered, out)
        found["scattered, gathered", elements] = gathered
        tensor = given(rank, elements)
        broadcast(peers, tensor, RANKS - 1)
        found["broadcast", elements] = tensor
        outs = [torch.empty(elements // (source + 1)) for source in range(RANKS)]
        all_to_all(peers, outs, [given(rank, elements // (rank + 1)) for _ in range(RANKS)])
        found["all_to_all", elements] = torch.cat(outs)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        for each in ranks:
            printed, _ = each.communicate(timeout=SECONDS)
            assert each.returncode == 0, printed
    finally:
        for each in ranks:
            each.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("elements", SIZES)
def test_values_are_right_and_have_the_same_bits_everywhere(found, elements):
    total = sum(given(rank, elements).double() for rank in range(RANKS))
    holes = sum(given(rank, 2 * elements)[::2].double() for rank in range(RANKS))
    expected = dict.fromkeys(ALL_REDUCES, total / RANKS)
    expected |= {"hierarchical": holes, "scattered, gathered": total, "broadcast": given(RANKS - 1, elements).double()}
    blocks = [given(source, elements // (source + 1)) for source in range(RANKS)]
    expected["all_to_all"] = torch.cat(blocks).double()
    for name, values in expected.items():
        torch.testing.assert_close(found[0][name, elements].double(), values, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(each[name, elements], found[0][name, elements]) for each in found), name


if __name__ == "__main__":
    program(int(sys.argv[1]), Path(sys.argv[2]))
