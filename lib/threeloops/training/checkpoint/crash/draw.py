"""Draw a crash: the operations of a save from top to bottom, and what became of each."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threeloops.figures import figure, palette
from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    Operation,
    Record,
    Saved,
    Sync,
    SyncAll,
    Truncate,
    Write,
)
from threeloops.training.checkpoint.crash.model.rules import POSIX, Rules
from threeloops.training.checkpoint.crash.model.states import State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_crash"]

_Fate = Literal["durable", "arrived", "lost", "not done", "call"]

_LOOKS: dict[_Fate, tuple[str, str, str]] = {
    "durable": ("o", palette.green, "on disk: an fsync made sure"),
    "arrived": ("o", palette.sky, "on disk, by luck"),
    "lost": ("X", palette.vermillion, "lost, or not all of it on disk"),
    "not done": (".", palette.grey, "never done"),
    "call": ("_", palette.purple, "fsync, or the save's return"),
}
_MOST_ROWS = 60


@dataclass(frozen=True)
class _Row:
    text: str
    first: int
    last: int
    fate: _Fate


def draw_crash(record: Record, state: State, rules: Rules = POSIX) -> "Figure":
    """Draw the operations of a record in order, the crash between two of them, and how much of each is in `state`, one
    of the record's `crash_states` under these rules. Consecutive writes of one file are drawn on one line."""
    rows = _rows(record.operations, _fates(record, state, rules))
    shown = rows[:_MOST_ROWS]
    fig, axes = figure(width=7.5, height=0.27 * len(shown) + 1.5)
    for fate, (marker, colour, meaning) in _LOOKS.items():
        heights = [i for i, row in enumerate(shown) if row.fate == fate]
        if heights:
            axes.scatter([0] * len(heights), heights, marker=marker, color=colour, s=60, lw=2, label=meaning, zorder=3)
    for i, row in enumerate(shown):
        number = str(row.first) if row.first == row.last else f"{row.first} to {row.last}"
        faint = palette.grey if row.fate == "not done" else palette.ink
        axes.text(-0.25, i, number, ha="right", va="center", fontsize=9, color=faint)
        axes.text(0.25, i, row.text, va="center", fontsize=9, color=faint)
    crash = next((i for i, row in enumerate(shown) if row.first > state.point), len(shown)) - 0.5
    axes.axhline(crash, color=palette.vermillion, lw=1.5, ls="--")
    axes.text(9.9, crash, "power cut", ha="right", va="bottom", fontsize=9, color=palette.vermillion)
    axes.set(xlim=(-1.2, 10), ylim=(len(shown) - 0.3, -0.8))
    axes.axis("off")
    more = f" (and {len(rows) - len(shown)} lines more)" if len(rows) > len(shown) else ""
    losses = state.losses
    lost = "nothing lost" if not losses else losses[0] + (f", and {len(losses) - 1} more" if losses[1:] else "")
    axes.set_title(lost.replace("`", "") + more, fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=9)
    return fig


def _fates(record: Record, state: State, rules: Rules) -> list[_Fate]:
    """Return what became of each operation."""
    disk = Disk.after(Record(record.start, record.operations[: state.point + 1]), rules)
    pending = {change.position for change in disk.pending}
    pending |= {position for inode in disk.inodes.values() for position, _ in inode.pending}
    lost = {change.position for change in state.missing}
    whole = {file.inode.number for file in state.dirty if not file.lost(state.point)}
    fates: list[_Fate] = []
    for position, operation in enumerate(record.operations):
        if position > state.point:
            fates.append("not done")
        elif isinstance(operation, Sync | SyncAll | Saved):
            fates.append("call")
        elif position not in pending:
            fates.append("durable")
        elif isinstance(operation, Write | Truncate):
            fates.append("arrived" if operation.file in whole else "lost")
        else:
            fates.append("lost" if position in lost else "arrived")
    return fates


def _rows(operations: list[Operation], fates: list[_Fate]) -> list[_Row]:
    rows: list[_Row] = []
    size = 0
    for position, (operation, fate) in enumerate(zip(operations, fates, strict=True)):
        before = operations[position - 1] if position else None
        if (
            isinstance(operation, Write)
            and isinstance(before, Write)
            and (before.file, rows[-1].fate) == (operation.file, fate)
        ):
            size += len(operation.data)
            first = rows.pop().first
            text = f"write {size} bytes of {operation.path} in {position - first + 1} pieces"
            rows.append(_Row(text, first, position, fate))
        else:
            size = len(operation.data) if isinstance(operation, Write) else 0
            rows.append(_Row(str(operation), position, position, fate))
    return rows
