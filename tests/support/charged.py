"""What programs on the virtual cluster share: layers that charge time, and a look at one step."""

import torch
from threeloops.training.cluster import charge


class ChargedLinear(torch.nn.Linear):
    """A linear layer that takes `forward` and `backward` seconds, the latter before its gradients are ready."""

    def __init__(self, inputs, outputs, forward=1e-4, backward=2e-4, bias=False):
        super().__init__(inputs, outputs, bias=bias)
        self.seconds = forward, backward

    def forward(self, x):
        return charge(super().forward(x), *self.seconds)


def between(run, start, end):
    """Messages of a run that were asked for in [start, end)."""
    return [message for message in run.messages if start <= message.ready < end]
