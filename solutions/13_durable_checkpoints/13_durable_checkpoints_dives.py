# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: What is left after a power cut? Deep dives
#     minutes: 60
# ---

# %% [markdown]
# # What is left after a power cut? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: the fewest fsyncs of a save, a save of four ranks that
# two can load, saves that write only what has changed, what to keep, savers that people use, and stores without a rename.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from threeloops.lab import animate, calibration, explore, figure, palette, predict, reveal, show, term
from threeloops.lab.disks.syncs import fewest_syncs
from threeloops.training.checkpoint import Checkpointer, CheckpointError, LocalStore, ObjectStore, Sharded, flat_range
from threeloops.training.checkpoint.crash import EXT4, POSIX, XFS, Record, crash_states, recording
from threeloops.training.checkpoint.crash import check as load_all_states
from threeloops.training.checkpoint.manifest import decode
from threeloops.training.checkpoint.pieces import Box, overlap
from threeloops.training.cluster import Cluster


def size_of(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# %% [markdown]
# ## Repair a save
#
# You have the record of a save without any fsync, and place the fsyncs. Content needs an fsync of its file, and a name needs
# one of its folder. Both must come before the rename that publishes them, and that rename needs one fsync after it. If a folder
# is renamed, its own name comes with the rename. With a pointer it does not, so the parent is synced twice, which is one more
# wait per save.
#
# Rules such as these are easily incomplete. For example, a temporary name that is used twice needs an fsync that they call
# superfluous. So `fewest_syncs` asks the loader: it begins with an fsync of everything before and after the
# publication, and drops each one that is not needed for every state after a power cut to load. The next cell does so
# for three savers.

# %% tags=["demo"]
predict(
    "pointer",
    "A saver makes step-2, writes one file into it, writes latest.tmp and renames it to latest. How many fsyncs does it need?",
)

# %% tags=["demo"] jupyter={"source_hidden": true}


def newest_step(folder):
    names = sorted(path.name for path in folder.glob("step-*") if path.name[5:].isdigit())
    return {path.name: path.read_bytes() for path in (folder / names[-1]).iterdir()}


def step_of_latest(folder):
    return {path.name: path.read_bytes() for path in (folder / (folder / "latest").read_text()).iterdir()}


STEP_1 = {"step-1": None, "step-1/a": b"old"}
SAVERS = {
    "one file, renamed": (
        [("create", "a.tmp"), ("write", "a.tmp", 700), ("rename", "a.tmp", "a")],
        {"a": b"old"},
        lambda folder: (folder / "a").read_bytes(),
    ),
    "a folder, renamed": (
        [
            ("mkdir", "step-2.tmp"),
            ("create", "step-2.tmp/a"),
            ("write", "step-2.tmp/a", 30),
            ("rename", "step-2.tmp", "step-2"),
        ],
        STEP_1,
        newest_step,
    ),
    "a folder and a pointer": (
        [
            ("mkdir", "step-2"),
            ("create", "step-2/a"),
            ("write", "step-2/a", 30),
            ("create", "latest.tmp"),
            ("write", "latest.tmp", "step-2"),
            ("rename", "latest.tmp", "latest"),
        ],
        STEP_1 | {"latest": b"step-1"},
        step_of_latest,
    ),
}
fewest = {name: fewest_syncs(*saver) for name, saver in SAVERS.items()}
with reveal("pointer"):
    show.against_prediction("pointer", len(fewest["a folder and a pointer"]), source="every other fsync was left out")
    show.table(
        [
            (name, len(operations), len(fewest[name]), "; ".join(f"{path} after {at}" for at, path in fewest[name]))
            for name, (operations, _, _) in SAVERS.items()
        ],
        header=("saver", "operations", "fsyncs", "where"),
        caption="fsyncs of which none can be left out. The number is that of the operation, from 0, and . is the folder itself",
    )

# %% [markdown]
# On ext4 and XFS fewer are needed, because an fsync also commits the journal (the log of changes to names), up to the last
# change of that file or folder. A saver that was tested there may lose data on another file system, for example on a network
# file system. To record the calls and to enumerate what they permit is the method of ALICE (Pillai et al. 2014), which found 60
# such faults in 11 programs, among them databases and version control systems.

# %% [markdown]
# ## Four ranks save, two load
#
# With ZeRO (lab 10) a rank holds a range of the *flattened* parameters. With tensor parallelism it holds some rows or columns.
# If each rank writes "its" file, only the same number of ranks, cut in the same way, can load it. So say instead how the piece lies in
# the whole tensor: a **box**, which is a start and a shape. Loading is then the overlap of two boxes, whichever ranks
# wrote and whichever ask.
#
# For example, a weight of 6 × 4 has 24 elements, and each of 4 ranks holds 6 in a row: rank 0 has row 0 and half of row 1. That is
# two boxes, start (0, 0) with shape (1, 4), and start (1, 0) with shape (1, 2). Two ranks that cut by columns
# ask for boxes of 6 × 2.
#
# The next cell saves a weight of 48 × 32 and a bias from 4 ranks with flat ranges, and loads them on 2 ranks by columns.

# %% tags=["demo"]
predict(
    "files",
    "Four ranks with flat ranges, two with columns: how many of the 4 files must each of the two ranks read?",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
WEIGHT = torch.arange(48 * 32, dtype=torch.float32).reshape(48, 32)
BIAS = torch.arange(48, dtype=torch.float32)


def flat_piece(whole, rank, ranks):
    length = -(-whole.numel() // ranks)
    return flat_range(tuple(whole.shape), rank * length, whole.flatten()[rank * length :][:length].clone())


def save_flat(folder):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = {"weight": flat_piece(WEIGHT, rank, ranks), "bias": BIAS.clone(), "rank": rank}
    Checkpointer(LocalStore(folder)).save(1, state)


def load_columns(folder):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    width = WEIGHT.shape[1] // ranks
    own = torch.zeros(48, width)
    part = Sharded((48, 32), torch.float32, (((0, rank * width), own),))
    loaded = Checkpointer(LocalStore(folder)).load({"weight": part, "bias": torch.zeros(48)})
    asked, files = Box((0, rank * width), (48, width)), set()
    for piece in loaded.manifest.tensors["weight"].pieces:
        if overlap(Box(piece.start, piece.shape), asked):
            files |= {loaded.manifest.files[block.file].name for block in piece.blocks}
    return own, sorted(files)


with tempfile.TemporaryDirectory() as folder:
    Cluster(4).run(save_flat, folder)
    step = next(Path(folder).glob("step-*"))
    listed = [(path.name, f"{path.stat().st_size:,}") for path in sorted(step.iterdir())]
    parts = Cluster(2).run(load_columns, folder).results
with reveal("files"):
    show.against_prediction("files", len(parts[0][1]), source="read from the manifest")
    show.table(
        listed,
        header=("file of the step", "bytes"),
        caption="Written by 4 ranks; the bias, which all have, is in one file only",
    )
    print("loaded on 2 ranks, and put together again:", torch.equal(torch.cat([own for own, _ in parts], 1), WEIGHT))


def draw_boxes(saved_by, loaded_by):
    """Which rank wrote each element, and which asks for it."""
    plot, axes = figure(width=8.5, height=3.0)
    rows, columns = 8, 12
    length = -(-rows * columns // saved_by)
    colours = (palette.sky, palette.orange, palette.green, palette.purple, palette.yellow, palette.blue)
    for row in range(rows):
        for column in range(columns):
            writer = (row * columns + column) // length
            axes.barh([row], [1], left=column, height=1.0, color=colours[writer], edgecolor="white", lw=0.5)
    for reader in range(1, loaded_by):
        axes.plot([reader * columns / loaded_by] * 2, [-0.5, rows - 0.5], color=palette.ink, lw=2.5)
    for reader in range(loaded_by):
        axes.text((reader + 0.5) * columns / loaded_by, -0.8, f"asked by {reader}", ha="center", va="bottom")
    axes.set(xlim=(0, columns), ylim=(rows - 0.4, -1.6))
    axes.axis("off")
    axes.set_title(f"Flat ranges of {saved_by} ranks (colours), loaded by columns on {loaded_by} (lines)")
    return plot


explore(
    draw_boxes,
    labels={"saved_by": "ranks that saved", "loaded_by": "ranks that load"},
    saved_by=[4, 2, 3, 6],
    loaded_by=[2, 3, 4],
)

# %% [markdown]
# ## Write only what has changed
#
# Between two saves a frozen embedding, or the frozen base model under an adapter, stays as it was. An **incremental**
# save compares blocks by their checksums and writes those that differ; for the others, the manifest refers to the
# file of an earlier step. The checksum now has to *identify* a block: with a CRC-32, two different blocks have the
# same one in 1 of 2³² cases, and the old values would be kept. So the checksum is SHA-256.
#
# Two costs come with it. An earlier file may not be removed while a later checkpoint refers to it. And one damaged block now damages all
# checkpoints that refer to it. So every few saves one is full, and the chain ends.

# %% tags=["demo"]
predict(
    "increment",
    "64 MiB in 16 tensors of equal size, of which one changes between saves. What percentage of a full save does an incremental save write?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
with tempfile.TemporaryDirectory() as folder:
    state = {f"layer {n}": torch.randn(1 << 20) for n in range(16)}
    checkpointer = Checkpointer(LocalStore(folder), full_every=4, keep=2, milestones=0)
    written = []
    for step in range(1, 10):
        state["layer 3"] += 1
        checkpointer.save(step, state)
        there = sorted(path.name for path in Path(folder).glob("step-*"))
        last = Path(folder) / there[-1]
        refers = sorted({file.directory for file in decode((last / "manifest.json").read_bytes()).files})
        written.append((step, size_of(last) / 2**20, size_of(folder) / 2**20, len(there), len(refers)))
with reveal("increment"):
    show.against_prediction(
        "increment", round(100 * written[1][1] / written[0][1], 1), unit="%", source="bytes on this disk"
    )
    show.table(
        [(s, f"{own:.1f}", f"{all_of_them:.1f}", folders, files) for s, own, all_of_them, folders, files in written],
        header=(
            "save",
            "MiB of this step",
            "MiB on the disk",
            "folders on the disk",
            "saves it refers to, with itself",
        ),
        caption="One of 16 tensors changes; every 4th save is full; the two newest are kept, and what they refer to",
    )

# %% [markdown]
# ## What to keep
#
# Keep at least two checkpoints: if the newest is damaged, the one before counts. Beside these, people keep
# **milestones** for evaluation and for going back when a loss has gone wrong long ago. With incremental saves, "the
# newest two" may need more than two folders, as the table shows, and right after a full save two full saves are on the
# disk.
#
# The next picture walks through a run in which each save changes other blocks, so that a checkpoint needs every save of its
# chain.

# %% tags=["demo"] jupyter={"source_hidden": true}


def kept_after(step, full_every, keep):
    """For each earlier save: "kept", "needed" by a kept one, or "removed"."""
    first_of = [n - (n - 1) % full_every for n in range(1, step + 1)]
    kept = set(range(max(1, step - keep + 1), step + 1))
    needed = {n for each in kept for n in range(first_of[each - 1], each)} - kept
    return ["kept" if n in kept else "needed" if n in needed else "removed" for n in range(1, step + 1)]


def draw_kept(step, full_every=4, keep=2, steps=12):
    plot, axes = figure(width=9.5, height=2.4)
    looks = {"kept": palette.green, "needed": palette.sky, "removed": palette.grey}
    for n, fate in enumerate(kept_after(step, full_every, keep), start=1):
        height = 1.0 if (n - 1) % full_every == 0 else 0.3
        axes.bar([n], [height], width=0.8, color=looks[fate], alpha=0.25 if fate == "removed" else 1.0)
        axes.text(n, height + 0.05, fate, ha="center", va="bottom", fontsize=8.5)
    axes.set(xlim=(0.4, steps + 0.6), ylim=(0, 1.35), xlabel="save (tall: full)", xticks=range(1, steps + 1), yticks=[])
    axes.set_title(f"After save {step}: the newest {keep} are kept, with what they refer to")
    return plot


animate(
    lambda frame: draw_kept(frame + 1),
    range(12),
    seconds=0.8,
    caption="A full save every 4, the newest 2 kept: a chain is removed as a whole",
)
explore(
    draw_kept,
    labels={"step": "saves so far", "full_every": "saves per full one", "keep": "saves to keep"},
    step=(1, 12, 1, 9),
    full_every=[4, 2, 8],
    keep=[2, 1, 3],
)

# %% [markdown]
# ## Savers that people use
#
# The same explorer takes any saver that writes through Python. Below are five ways to save a state, as they stand in many programs. Each saves
# twice, the second save is recorded, and its own loader is tried on every state that a power cut may leave.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("savers", "How many of the five survive every power cut that POSIX permits?", unit="savers")


# %% tags=["demo"]
def save_plain(state, folder):
    with open(folder / "state.pt", "wb") as file:
        torch.save(state, file)


def save_json(state, folder):
    with open(folder / "state.json", "w") as file:
        json.dump({"weight": state["weight"].tolist()}, file)


def save_replaced(state, folder):
    with open(folder / "new.pt", "wb") as file:
        torch.save(state, file)
    os.replace(folder / "new.pt", folder / "state.pt")


def save_synced(state, folder):
    with open(folder / "new.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "new.pt", folder / "state.pt")


def save_all_synced(state, folder):
    save_synced(state, folder)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


# %% tags=["demo"] jupyter={"source_hidden": true}
def load_torch(folder):
    return torch.load(folder / "state.pt")["weight"]


def load_json(folder):
    return torch.tensor(json.loads((folder / "state.json").read_text())["weight"])


def verdict(save, load, rules):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save({"weight": torch.zeros(200)}, folder)
        with recording(folder) as recorder:
            save({"weight": torch.ones(200)}, folder)
        report = load_all_states(recorder.record, load, rules, most=60)
    broken, lost = report.count("broken"), report.count("lost")
    return (f"{broken} broken, {lost} lost" if broken or lost else "survives") + f" (of {report.states})"


LOADS = {"json.dump": (save_json, load_json), "torch.save": (save_plain, load_torch)}
LOADS |= {"torch.save, os.replace": (save_replaced, load_torch), "… with an fsync before": (save_synced, load_torch)}
LOADS |= {"… and one of the folder after": (save_all_synced, load_torch)}
rows = [(name, *(verdict(*pair, rules) for rules in (POSIX, EXT4, XFS))) for name, pair in LOADS.items()]
show.against_prediction(
    "savers", sum("survives" in row[1] for row in rows), unit="savers", source="every state was loaded"
)
with reveal("savers"):
    show.table(
        rows,
        header=("saver", "POSIX", "ext4", "XFS"),
        caption="broken: neither state loads; lost: the save had returned, and the old state loads",
    )

# %% [markdown]
# The replacement without an fsync is broken on XFS, and on ext4 only loses what was new. The fsync before makes the file whole, and the one of the folder
# makes its name last. `docs/power_cuts.md` has the verdicts of seventeen savers, those of transformers, accelerate, Lightning and torch's DCP
# among them, whose calls were recorded by strace.
#
# ## Other file systems, other promises
#
# The states that a power cut may leave depend on the rules. Under ext4's rules many careless saves survive, because the
# journal keeps the order of names, and a rename over a file waits for the data. The next cell counts states for one
# save with each of its fsyncs left out in turn.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.training.checkpoint.crash.model.operations import Sync

with tempfile.TemporaryDirectory() as folder:
    store = LocalStore(folder)
    Checkpointer(store).save(1, {"weight": torch.zeros(200)})
    with recording(folder) as recorder:
        Checkpointer(store).save(2, {"weight": torch.ones(200)})
record = recorder.record


def load_weight(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Checkpointer(LocalStore(folder)).load().state["weight"]


rows = []
for left_out in [None, *(n for n, each in enumerate(record.operations) if isinstance(each, Sync))]:
    operations = [each for n, each in enumerate(record.operations) if n != left_out]
    bad = []
    for rules in (POSIX, EXT4, XFS):
        report = load_all_states(Record(record.start, operations), load_weight, rules, most=60)
        bad.append(f"{report.count('broken')} / {report.count('lost')} of {report.states}")
    rows.append(("nothing" if left_out is None else str(record.operations[left_out]), *bad))
show.table(
    rows,
    header=("left out", "POSIX", "ext4", "XFS"),
    caption="The course's Checkpointer without one of its fsyncs: of the states tried (extreme ones and a sample), those that lose both steps / that lose a save that had returned",
)
print(f"{len(crash_states(record, most=60).states)} states of the save as it is, under POSIX rules")

# %% [markdown]
# The checksums help here too. If an fsync of the data is missing, the load sees that the new step is torn, and takes
# the old one: nothing is loaded wrongly, but a save that had returned is lost. Two fsyncs can be left out: the first
# one of the parent folder, because the one after the pointer comes soon enough, and that of `latest.tmp`, because the
# pointer is only a hint.

# %% [markdown]
# ## Object stores
#
# S3 and most of its relatives have no rename (some newer kinds of bucket do) and no fsync. Each put is all or
# nothing, and it is durable when it returns. So the order is simple: put all files, then the manifest, then the
# pointer. A step without a manifest does not count. An upload in parts must be cancelled when it fails, or its parts
# are stored (and paid for) without being seen.
#
# The next cell saves into a store in memory, interrupts a save before its manifest, and loads.

# %% tags=["demo"] jupyter={"source_hidden": true}


class Interrupted(ObjectStore):
    """A program that ends before the manifest of step 2."""

    def commit(self, directory, manifest):
        if "2" in directory:
            raise OSError("the program ends here")
        super().commit(directory, manifest)


store = Interrupted("memory://run")
checkpointer = Checkpointer(store)
checkpointer.save(1, {"weight": torch.full((4,), 1.0)})
try:
    checkpointer.save(2, {"weight": torch.full((4,), 2.0)})
except CheckpointError as error:
    print("save 2:", error)
print("load:  ", Checkpointer(ObjectStore("memory://run")).load().state["weight"].tolist(), store.directories())

# %% [markdown]
# ## What to remember
#
# - Save where a piece lies in the whole, and any other ranks can load it.
# - Incremental saves refer to older files: identify blocks by SHA-256, end chains, and remove nothing that is referred to.
# - Write savers that are right under the POSIX rules: ext4 and XFS promise more, and other file systems may not.
# - Without a rename, the last put is the commit.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("crash state")
calibration()
