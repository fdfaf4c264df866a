"""A launch each of kernels whose traffic the meter counts, for a profiler to read the hardware's own counters:

    ncu … python -m benchmarks.hardware_counters

`make evidence` does this where Nsight Compute is installed, and keeps the counters beside the least bytes.
"""

from __future__ import annotations

import torch
from threeloops.inner.kernels.attention.flash_attention import flash_attention
from threeloops.inner.kernels.matmul.matmul import matmul
from threeloops.inner.kernels.rows.rmsnorm import rmsnorm
from threeloops.inner.kernels.rows.saxpy import saxpy
from threeloops.inner.kernels.rows.softmax import softmax


def main() -> None:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    saxpy(2.0, normal(1 << 26), normal(1 << 26))
    rmsnorm(normal(16384, 4096), normal(4096))
    softmax(normal(8192, 8192))
    matmul(normal(4096, 4096), normal(4096, 4096))
    flash_attention(*(normal(4, 16, 4096, 128) for _ in range(3)), causal=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
