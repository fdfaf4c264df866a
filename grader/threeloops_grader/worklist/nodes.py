"""Machines of a cluster that cannot isolate submissions. Each says so beside the records, and gets no more work."""

import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from threeloops.files import replace_text

__all__ = ["UNFIT", "forget_unfit", "note_unfit", "this_node", "unfit_nodes"]

UNFIT = 3
"""The exit code of a worker whose machine cannot isolate submissions: its share is to be graded elsewhere."""


def this_node() -> str:
    """Return the name of this machine, as Slurm or Kubernetes call it."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def note_unfit(records: Path, reason: str) -> None:
    """Note beside the records that this machine cannot isolate submissions."""
    folder = records / "unfit"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]", "_", this_node())
    replace_text(folder / f"{name}.json", json.dumps({"node": this_node(), "reason": reason}, indent=1) + "\n")


def unfit_nodes(records: Path) -> dict[str, str]:
    """Return the machines that noted so, each with the reason."""
    nodes = {}
    for path in sorted((records / "unfit").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(path.read_text(encoding="utf-8"))
            nodes[str(note["node"])] = str(note["reason"])
    return nodes


def forget_unfit(records: Path) -> None:
    """Remove the notes of earlier runs, because a machine may have been repaired."""
    for path in (records / "unfit").glob("*.json"):
        path.unlink(missing_ok=True)
