"""Which GPUs a process may see: CUDA's reading of CUDA_VISIBLE_DEVICES, as a pure function.

The variable is how schedulers, containers and people give one process some of a machine's GPUs. It hides devices, it
renumbers those that remain, and a typing mistake in it shortens the list without a word.
"""

import re
from collections.abc import Sequence


def visible_devices(variable: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """The GPUs, by place in `uuids`, that this value of CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order.

    Unset shows all; an empty string none. Otherwise a comma-separated list of ordinals, or of UUIDs of which the
    first characters suffice ("GPU-8932f937"); the first entry that names no GPU, or more than one, hides itself and
    everything after it. Source: CUDA Programming Guide, "CUDA Environment Variables". Two rules are not in the guide
    and follow PyTorch's reading of the variable (`torch.cuda._parse_visible_devices`): a device named twice leaves
    none, and the first entry decides whether the list holds ordinals or UUIDs. MIG slices are not in the record.
    """
    if variable is None:
        return tuple(range(len(uuids)))
    entries = [entry.strip() for entry in variable.split(",")]
    find = find_by_uuid if entries[0].startswith("GPU-") else find_by_ordinal
    visible: list[int] = []
    for entry in entries:
        device = find(entry, uuids)
        if device is None:
            break
        if device in visible:
            return ()
        visible.append(device)
    return tuple(visible)


def find_by_ordinal(entry: str, uuids: Sequence[str]) -> int | None:
    """The GPU with this number. Like C's strtoul, which CUDA uses, it reads the leading digits only ("1gpu" is 1)."""
    number = re.match(r"[+-]?\d+", entry)
    ordinal = int(number.group()) if number else -1
    return ordinal if 0 <= ordinal < len(uuids) else None


def find_by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    """The one GPU whose UUID starts with `entry`; None when there is none, or more than one."""
    matches = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
