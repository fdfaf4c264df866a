"""The virtual cluster: real processes, real values, virtual time.

Each rank is a process that runs unmodified `torch.distributed` code. Its only way to another rank is a router, which
carries the bytes and keeps the clocks: two cores stand for sixty-four devices, and every run gives the same bytes, the
same messages and the same times, to the last digit.

>>> def program():
...     gradient = torch.full((1 << 20,), float(dist.get_rank()))
...     compute(1e-3)
...     dist.all_reduce(gradient)
>>> run = Cluster(one_node("H100 SXM", 8)).run(program)
>>> run.seconds, run.bytes[0][1]

The same program runs on real processes with `run_on_processes("gloo", 8, program)`, and with NCCL if there are GPUs.

This is how the most similar tools compare, according to their own documentation:

                      programs                     values   time                       network
    this              unmodified torch.distributed real     virtual, as charged        ports with α and β, faults
    Phantora (2026)   unmodified Megatron,         none     virtual; kernels measured  flows
                      DeepSpeed, TorchTitan                 on the one GPU it needs
    SimGrid SMPI      MPI, compiled with smpicc    real     virtual; compute measured  flows with contention
                                                            or charged
    Maelstrom         any language, JSON on stdin  real, no the machine's clock        latency, loss, partitions
                      and stdout                   tensors
    torch, "fake"     unmodified, one rank alone   none     none                       none
    torch, threaded   threads of one process, for  real     none                       none
                      PyTorch's own tests

A script runs as it is: `Cluster(8).run(script("train.py"))`, or `threeloops cluster --ranks 8 train.py`. That includes
its own `init_process_group`, DDP, FSDP, DTensor, functional collectives, pipelining and distributed checkpoints:
`docs/what_runs.md` lists what was compared with gloo.

The cluster cannot predict the time of kernels (charge the time that a roofline or a measurement gives), or run programs
whose memory does not fit into the machine. It refuses the following, and names them in the error: tensors on a GPU,
sparse tensors, `recv` from any rank, a second thread or process of a rank that communicates, keys of a `Store` that
another rank sets, and `torch.distributed.rpc`.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.cluster.cluster import Cluster, Run
    from threeloops.training.cluster.machine.errors import (
        ClusterError,
        Deadlock,
        Mismatch,
        RankFailed,
        RankLost,
        Unfinished,
    )
    from threeloops.training.cluster.machine.faults import CorruptMessage, RankDies, SlowLink, SlowRank
    from threeloops.training.cluster.machine.topology import (
        Topology,
        fabric,
        one_node,
        pcie_only,
        read_topology,
        uniform,
    )
    from threeloops.training.cluster.program import advance_to, ask, charge, compute, now, synchronize
    from threeloops.training.cluster.real import run_on_processes
    from threeloops.training.cluster.script import script
else:
    import_on_demand(__name__)

__all__ = [
    "Cluster", "ClusterError", "CorruptMessage", "Deadlock", "Mismatch", "RankDies", "RankFailed", "RankLost",
    "Run", "SlowLink", "SlowRank", "Topology", "Unfinished", "advance_to", "ask", "charge", "compute", "fabric", "now",
    "one_node", "pcie_only", "read_topology", "run_on_processes", "script", "synchronize", "uniform",
]  # fmt: skip
