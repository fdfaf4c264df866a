"""One encoded value on its way to the student's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from grader.link import Buffer


@dataclass
class Message:
    """An encoded value, and what the answer needs: tensors that want gradients, arguments to restore."""

    tree: dict[str, Any] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    in_place: list[Any] = field(default_factory=list)
    by_value: list[Any] = field(default_factory=list)
