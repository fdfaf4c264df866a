"""Access to torch if this process has imported it, so that a lab without tensors does not wait two seconds for the
import."""

import sys
from typing import Any

__all__ = ["is_module", "is_tensor", "torch_if_imported"]


def torch_if_imported() -> Any:
    """Return the module, or None if nothing has imported it yet. Then no value here is a tensor."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    torch = torch_if_imported()
    return torch is not None and isinstance(value, torch.Tensor)


def is_module(value: Any) -> bool:
    """Return whether it is a `torch.nn.Module`."""
    torch = torch_if_imported()
    return torch is not None and isinstance(value, torch.nn.Module)
