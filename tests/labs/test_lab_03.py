"""Lab 03: the random numbers that its checks expect are Triton's."""

import torch
import triton
import triton.language as tl
from lab_source import execute, load
from threeloops.inner import interpreter

interpreter.enable_without_gpu()


@triton.jit
def draw(out, seed, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at), mask=at < n)


def test_the_checks_draw_what_triton_draws():
    names = {"__name__": "__main__"}
    execute(load("03_triton_fusion").setup, "<03 setup>", names)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for seed in (0, 7, 12345, 2**33 + 5):
        drawn = torch.empty(3000, device=device)
        draw[(3,)](drawn, seed, 3000, BLOCK=1024)
        torch.testing.assert_close(drawn.cpu(), names["uniform"](seed, range(3000)), rtol=0, atol=0)
