"""Predict the time of a Triton kernel on GPUs that you do not have, from its metered traffic."""

import torch
from threeloops.hardware import accelerator
from threeloops.inner.kernels.rows.softmax import softmax
from threeloops.inner.meter import meter
from threeloops.inner.predict import predict

x = torch.randn(256, 4096)
with meter() as traffic:
    softmax(x)
for name in ("A100 SXM 80GB", "H100 SXM", "H200 SXM"):
    time = predict(traffic.total, accelerator(name), dtype="fp32")
    print(f"{name:13} {time.low * 1e6:.2f} to {time.high * 1e6:.2f} µs, bound by {time.bound}")
print("the last one rests on:", *time.how, sep="\n  ")
