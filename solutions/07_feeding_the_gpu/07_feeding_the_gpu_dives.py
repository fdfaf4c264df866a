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
#     title: Is the GPU hungry? Deep dives
#     minutes: 60
# ---

# %% [markdown]
# # Is the GPU hungry? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: what a checksum sees, the file that is already an
# array, a local cache, threads against processes, small files on this disk, a loader that fails and
# goes on, copies to a GPU, and how fast storage is.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import io
import os
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from threeloops.data.errors import CorruptData, WorkerFailed
from threeloops.data.formats import decode
from threeloops.data.formats.crc32c import crc32c, masked
from threeloops.data.formats.sample import Sample
from threeloops.data.formats.small_files import list_samples, read_sample, write_small_files
from threeloops.data.formats.tar_shards import read_tar_shard, shard_bytes, write_tar_shards
from threeloops.data.formats.tfrecord import frame, read_records
from threeloops.data.formats.token_shards import TokenShards, write_token_shards
from threeloops.data.loading.device_feed import DeviceFeed
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.prefetch import prefetch
from threeloops.data.loading.sampler import SamplerState, remaining
from threeloops.data.storage.cache import CachedStore
from threeloops.data.storage.store import MemoryStore
from threeloops.data.storage.tiers import forget, measure_tiers
from threeloops.hardware import accelerator, device
from threeloops.lab import audit, calibration, figure, myth, palette, predict, reveal, show, term

rng = np.random.default_rng(0)

# %% [markdown]
# ## Framing, and what a checksum sees
#
# A tar header protects itself with a sum of its bytes. The contents have nothing, so a flipped bit in an image goes
# unnoticed. TFRecord frames every record between two checksums, of its length and of its data. The checksum is CRC32C, the
# remainder of a polynomial division over GF(2), which a single table of 256 remainders turns into one look-up per byte. TFRecord
# stores it *masked*, rotated by 15 bits and with a constant added, because a CRC over data that contain their own CRC is a
# weak check.

# %% tags=["demo"] jupyter={"source_hidden": true}
assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"123456789") == 0xE3069283  # RFC 3720, and the usual check value
record = b"hungry"
framed = frame(record)
show.table(
    [
        ["length", framed[:8].hex(" "), "6, little-endian"],
        ["masked CRC of the length", framed[8:12].hex(" "), f"{masked(crc32c(framed[:8])):#010x}"],
        ["data", framed[12:18].hex(" "), "hungry"],
        ["masked CRC of the data", framed[18:].hex(" "), f"{masked(crc32c(record)):#010x}"],
    ],
    ["a TFRecord", "bytes", "meaning"],
)

# %% tags=["demo"] jupyter={"source_hidden": true}
payload = rng.bytes(3000)
tar = b"".join(shard_bytes([Sample("a", {"bin": payload})]))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "a.tfrecord")
    framed = frame(payload)
    caught = {"tar shard": 0, "TFRecord": 0, "sum of bytes, two swapped": 0, "CRC32C, two swapped": 0}
    for _ in range(200):
        place = int(rng.integers(0, 3000))
        damaged = bytearray(tar)
        damaged[512 + place] ^= 1 << int(rng.integers(8))
        try:
            list(read_tar_shard(io.BytesIO(bytes(damaged)), "a.tar"))
        except CorruptData:
            caught["tar shard"] += 1
        damaged = bytearray(framed)
        damaged[12 + place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            list(read_records(path))
        except CorruptData:
            caught["TFRecord"] += 1
        swapped, at = bytearray(payload), next(n for n in range(place % 2900, 2999) if payload[n] != payload[n + 1])
        swapped[at], swapped[at + 1] = payload[at + 1], payload[at]
        caught["sum of bytes, two swapped"] += sum(swapped) != sum(payload)
        caught["CRC32C, two swapped"] += crc32c(bytes(swapped)) != crc32c(payload)
show.table(
    [[name, f"{count} of 200"] for name, count in caught.items()],
    ["one bit flipped, or two neighbours swapped", "noticed"],
)
assert list(caught.values()) == [0, 200, 0, 200]

# %% [markdown]
# A sum does not depend on the order of its bytes; the remainder of a division does. Neither can tell *who* changed the data,
# because anyone who can write a record can write its CRC. And a damaged **length** is worse than damaged data, since
# nothing behind it can be found. That is why it has a checksum of its own.
#
# ## The file that is already an array
#
# Tokens have no decoding. A corpus is a flat array of integers, and a training sample is a window of it, so the cheapest
# loader reads nothing at all: it maps the file, and lets the page fault fetch what is touched.

# %% tags=["demo"] jupyter={"source_hidden": true}
with tempfile.TemporaryDirectory(dir=".") as folder:
    corpus = rng.integers(0, 50_257, 8_000_000).astype(np.uint16)
    write_token_shards(Path(folder), [corpus], 2_000_000)
    for path in Path(folder).glob("*.bin"):
        forget(path)
    start = time.perf_counter()
    tokens = TokenShards(Path(folder))
    window = tokens.window(3_000_000, 1025).astype(np.int64)
    first_window = time.perf_counter() - start
    for path in Path(folder).glob("*.bin"):
        forget(path)
    start = time.perf_counter()
    loaded = np.concatenate([np.fromfile(path, np.uint16, offset=64) for path in sorted(Path(folder).glob("*.bin"))])
    whole_file = time.perf_counter() - start
    starts = rng.integers(0, len(tokens) - 1025, 2000)
    start = time.perf_counter()
    for place in starts:
        tokens.window(int(place), 1025)
    a_window = (time.perf_counter() - start) / len(starts)
    assert np.array_equal(window, corpus[3_000_000:3_001_025]) and np.array_equal(loaded, corpus)
    assert np.shares_memory(tokens.window(10, 5), tokens.maps[0])
    del tokens
show.table(
    [
        ["open, and the first window", f"{first_window * 1e3:.2f} ms"],
        ["read all 16 MB instead", f"{whole_file * 1e3:.2f} ms"],
        ["each further window: a view, nothing is copied", f"{a_window * 1e6:.1f} µs"],
    ],
    ["8 million tokens in 4 shards, measured here", ""],
)

# %% [markdown]
# The map costs what you touch, is shared by all worker processes, and is evicted by the kernel when memory is short. The
# price: a page fault is a synchronous read in the middle of your loop (Linux reads around it, up to 128 KiB by default), and
# over a network file system each one is a request. Memory maps are for local disks.
#
# ## A local cache
#
# The second epoch reads the same data. Keep as much of the data as fits on the local disk, and throw out what was used
# least recently.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "hit_rate",
    "80% of the data fit. What percentage of the second epoch comes from the cache, if it reads in the same order as the first?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
OBJECTS = MemoryStore({f"shard {n}": bytes(2000) for n in range(60)})


def hit_rate(share, shuffled, epochs=4):
    """Hits of the library's cache in the epochs after the first."""
    with tempfile.TemporaryDirectory() as folder:
        cache = CachedStore(OBJECTS, Path(folder), int(share * 60) * 2004)
        keys, order = list(OBJECTS.objects), np.random.default_rng(7)
        for epoch in range(epochs):
            if epoch == 1:
                cache.hits = 0
            for n in order.permutation(60) if shuffled else range(60):
                cache.get(keys[n])
        return cache.hits / (60 * (epochs - 1))


SHARES = [0.2, 0.4, 0.6, 0.8, 0.95, 1.0]
in_order, shuffled = ([hit_rate(share, each) for share in SHARES] for each in (False, True))
assert in_order[:-1] == [0.0] * 5 and in_order[-1] == 1.0
show.against_prediction("hit_rate", 100 * in_order[SHARES.index(0.8)], unit="%", source="the library's cache")
with reveal("hit_rate"):
    fig, axes = figure(width=8.0, height=3.5)
    axes.plot([100 * s for s in SHARES], [100 * h for h in shuffled], "o-", label="another order every epoch")
    axes.plot([100 * s for s in SHARES], [100 * h for h in in_order], "s-", label="the same order every epoch")
    axes.plot([20, 100], [20, 100], color=palette.grey, ls=":", lw=1.2)
    axes.text(
        37,
        39,
        "never throw out",
        color=palette.grey,
        rotation=45,  # of the line in the data's units; turned with the axes
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=9,
    )
    axes.set(
        xlabel="% of the data set that fits",
        ylabel="% of reads that hit",
        title="Least recently used, in the epochs after the first",
    )
    axes.legend(loc="upper left")
    show.figure(fig)

# %% [markdown]
# Zero. The sample needed next has always been thrown out already: for data that are read in a circle, a cache that is a
# little too small is useless, and shuffling helps it. The dotted line is the simplest policy: keep what came first, and
# never throw it out. For data that are all read once per epoch it beats the least recently used policy.
#
# ## Threads, processes, and the lock
#
# A Python interpreter runs one thread at a time (unless it is a free-threaded build, which exists from 3.13 on). Waiting for a
# store releases that lock, and so does C code such as zlib or a JPEG decoder, if its authors thought of it. A loop in Python
# never does. So whether to use threads or processes depends on what the workers do.

# %% tags=["demo"] jupyter={"source_hidden": true}
PACKED = [zlib.compress(rng.integers(0, 16, 200_000, dtype=np.uint8).tobytes(), 1) for _ in range(4)]
CREWS = {"no worker": ("thread", 0), "2 threads": ("thread", 2), "2 processes": ("process", 2)}
WORK = (  # what a worker does with each key, the keys, and the recorded samples/s of each crew
    ("waiting 5 ms for a store", time.sleep, [0.005] * 44, (193, 361, 346)),
    ("a loop in Python", decode.in_python, PACKED * 7, (60, 53, 107)),
    ("zlib and numpy", decode.in_c, PACKED * 30, (955, 1269, 1081)),
)


def samples_per_second(load, keys, kind, workers):
    """The rate once the workers are up and have loaded two each."""
    with prefetch(load, keys, workers, ahead=2, kind=kind) as loaded:
        values = iter(loaded)
        for _ in range(4):
            next(values)
        start = time.perf_counter()
        rest = sum(1 for _ in values)
        return rest / (time.perf_counter() - start)


def against_the_first(rates):
    alone, *others = rates
    return [f"{alone:,.0f}", *(f"{rate:,.0f} ({rate / alone:.1f}×)" for rate in others)]


rows = []
for name, load, keys, recorded in WORK:
    # In turns, and the better of two each: on a shared machine everything else only ever adds time.
    rounds = [{crew: samples_per_second(load, keys, *how) for crew, how in CREWS.items()} for _ in range(2)]
    rows.append([name, "here", *against_the_first([max(each[crew] for each in rounds) for crew in CREWS])])
    rows.append(["", "recorded", *against_the_first(recorded)])
assert decode.in_python(PACKED[0]) == decode.in_c(PACKED[0])
show.table(
    rows,
    ["samples per second", "where", *CREWS],
    caption=f"here: {os.cpu_count()} cores; recorded: the same cell on two cores of an AMD EPYC on which it had priority",
)
show.busy_notice()

# %% [markdown]
# Two waits overlap in threads and in processes, even on a busy machine. For a loop in Python threads gain nothing, and
# processes gain up to the number of free cores: two of them gained 1.8× where the figures were recorded. For C code that
# releases the lock, threads come close to processes or pass them, because they pay neither for pickling nor for a second copy
# of the data set's index. On a machine that other programs use too, your own factors may be lower, and a fifth more or less
# may be noise. Processes are spawned here, and not forked: a fork copies locks that other threads hold, and CUDA does not
# survive it.
#
# ## Small files on this disk
#
# There is no network here and no latency of 30 ms. What do small files cost on a local disk? 1,000 samples of 8 kB are read
# from the page cache, and again after the kernel was asked to forget them.


# %% tags=["demo"] jupyter={"source_hidden": true}
def timed(read, paths, cold):
    if cold:
        for path in paths:
            forget(path, flush=False)
    start = time.perf_counter()
    count = sum(1 for _ in read())
    return count / (time.perf_counter() - start)


def from_files(index):
    for key, files in index.items():
        yield read_sample(key, files)


def from_shards(paths):
    for path in paths:
        with path.open("rb") as file:
            yield from read_tar_shard(file, path.name)


disk_samples = [Sample(f"{n:06d}", {"jpg": rng.bytes(8000), "cls": b"7"}) for n in range(1000)]
with tempfile.TemporaryDirectory(dir=".") as folder:
    write_small_files(Path(folder, "small"), disk_samples)
    shards = write_tar_shards(Path(folder, "shards"), disk_samples, 250)
    os.sync()
    index = list_samples(Path(folder, "small"))
    files = [path for found in index.values() for path in found]
    LAYOUTS = (
        ("small files", lambda: from_files(index), files),
        ("tar shards", lambda: from_shards(shards), shards),
    )
    RATES = {}
    for cold in (False, True):
        for _ in range(5):  # in turns, and the best of five: everything else on the machine only ever adds time
            for name, read, paths in LAYOUTS:
                RATES[name, cold] = max(RATES.get((name, cold), 0.0), timed(read, paths, cold))
show.table(
    [
        [
            "not in the page cache" if cold else "in the page cache",
            f"{RATES['small files', cold]:,.0f}",
            f"{RATES['tar shards', cold]:,.0f}",
            f"{RATES['tar shards', cold] / RATES['small files', cold]:.1f}×",
        ]
        for cold in (False, True)
    ],
    ["1,000 samples of 8 kB, measured here", "small files, samples/s", "tar shards, samples/s", "gain"],
)

# %% [markdown]
# Even without a network a file is a path to look up, an inode to read, an open and a close, twice per sample. On a disk that
# seeks, and on a file system that a thousand jobs share, the gap is wider; the row of the page cache shows the cost
# that is left when nothing has to be fetched at all. A gain below 1× means noise, or a busy machine.
#
# ## A loader that fails and goes on
#
# The library's `Loader` prefetches as in exercise 3 and resumes as in exercise 7. Its state is three integers, and its workers
# run ahead. A loop that saves checkpoints iterates over `loader.with_states()`, which gives each batch the state after it.
# Here a load goes wrong in the middle of an epoch, the loop ends with a named error, and a crew of another size goes on. (The
# tests of the library kill worker processes in the same place, with the same result.)

# %% tags=["demo"] jupyter={"source_hidden": true}
POISON = int(remaining(SamplerState(0), 100)[57])


def load_or_fail(indices):
    if POISON in indices and not recovered:
        raise OSError("the network is gone")
    return indices.tolist()


recovered, used = False, []
loader = Loader(load_or_fail, 100, 8, SamplerState(0), workers=4)
try:
    for batch in loader:
        used += batch
except WorkerFailed as reason:
    print(f"{reason}\nstate to resume from: {loader.state}")
recovered = True
for batch in Loader(load_or_fail, 100, 8, loader.state, workers=3):
    used += batch
assert used == remaining(SamplerState(0), 100).tolist()
print(f"{len(used)} samples, {len(set(used))} different ones, in the order of the uninterrupted epoch")

# %% [markdown]
# ## Copies to a GPU
#
# A copy runs beside kernels only if its source is **pinned**: the copy engine reads physical addresses, and an ordinary page may
# move. From pageable memory the driver copies twice, and the call waits. `DeviceFeed` is `double_buffer` with real streams and
# pinned buffers; `pin_memory=True` and `non_blocking=True` are the same two steps in a `DataLoader`.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("feed-3")


def on_gpu(feed, rounds):
    """Milliseconds per batch, with a matmul for a step."""
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in feed:
        for _ in range(4):
            square @ square
        batch.sum()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / rounds * 1e3


if device() == "cuda":
    host = [torch.randn(64, 3, 224, 224) for _ in range(20)]
    for _ in range(2):  # the first pass warms up
        rows = [
            ["pageable, in the loop", f"{on_gpu((b.cuda() for b in host), 20):.2f}"],
            ["pinned, double-buffered", f"{on_gpu(DeviceFeed(host, 'cuda'), 20):.2f}"],
        ]
    show.table(rows, ["copy of a batch of 38.5 MB", "ms per batch, measured here"])
link, size = accelerator("H100 SXM").host_link_bandwidth, 64 * 3 * 224 * 224 * 4
if device() != "cuda":
    show.table(
        [[f"{size / 1e6:.1f} MB over {link / 1e9:.0f} GB/s", f"{size / link * 1e3:.2f} ms"]],
        ["64 images of 3 × 224 × 224 in FP32, to an H100", "at least (model)"],
    )
    print(
        "Not measured on a GPU yet. On a machine with one, this cell times pageable against pinned, double-buffered copies."
    )
audit(
    "feed-3",
    round(size / link * 1e3, 2),
    "ms at least for the copy of 64 images of 3 × 224 × 224 in FP32",
    "model",
    "corrected",
    how="pinning makes the copy faster and lets it run beside kernels, and changes nothing else. In the core's recorded loop a fetch takes "
    "52 ms: a trainer that waits for the store goes on waiting, however short the copy is",
)
term("pinned memory")

# %% [markdown]
# ## Five tiers of storage
#
# A claim lists the bandwidth of five kinds of storage, in an order. Judge it first. Then see what this machine's own tiers
# deliver, beside the claimed numbers in the order in which they are listed.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("feed-1")
tiers = measure_tiers(Path("."), size=64 << 20, repeats=3)
CLAIMED = {  # bytes/s, low and high; a network is sold in bits
    "VRAM": (2e12, 2e12),
    "NVMe": (7e9, 7e9),
    "SATA SSD": (0.5e9, 0.5e9),
    "NAS, 1–10 Gb/s": (1e9 / 8, 10e9 / 8),
    "object store": (0.1e9, 0.9e9),
}
fig, (left, right) = figure(1, 2, width=12.5, height=3.4, width_ratios=[3, 2])
for row, (low, high) in enumerate(CLAIMED.values()):
    if low == high:
        left.plot(low / 1e9, row, "o", color=palette.blue, ms=9)
    else:
        left.plot([low / 1e9, high / 1e9], [row, row], color=palette.orange, lw=7, solid_capstyle="round")
left.axvline(0.5, color=palette.grey, ls=":", lw=1.2)
left.text(0.55, -0.3, "a SATA SSD", fontsize=9, color=palette.grey)
left.set(
    xscale="log",
    xlim=(0.05, 8000),
    yticks=range(5),
    yticklabels=list(CLAIMED),
    ylim=(4.6, -0.6),
    xlabel="GB/s",
    title="As claimed, “fast to slow”",
)
right.plot([tier.bandwidth / 1e9 for tier in tiers], range(len(tiers)), "o", color=palette.green, ms=9)
for row, tier in enumerate(tiers):
    said = f"{tier.bandwidth / 1e9:.1f} GB/s, 4 KiB in {tier.latency * 1e6:.1f} µs"
    right.annotate(said, (tier.bandwidth / 1e9, row), (8, 0), textcoords="offset points", va="center", fontsize=10)
right.set(
    xscale="log",
    xlabel="GB/s, read from front to back",
    title="Measured here",
    yticks=range(len(tiers)),
    yticklabels=[tier.name for tier in tiers],
    ylim=(-0.6, len(tiers) - 0.4),
)
right.set_xlim(min(t.bandwidth for t in tiers) / 2e9, max(t.bandwidth for t in tiers) / 1e9 * 30)
right.invert_yaxis()
for axes in (left, right):
    axes.grid(axis="y", visible=False)
with reveal("feed-1"):
    show.figure(fig, "bandwidth of storage as claimed, and as measured here")
nas = CLAIMED["NAS, 1–10 Gb/s"][1]
audit(
    "feed-1",
    nas / CLAIMED["SATA SSD"][1],
    "× a SATA SSD: a NAS at 10 Gb/s",
    "model",
    "corrected",
    how=f"1–10 Gb/s are 0.125–{nas / 1e9:.2f} GB/s, so the list is not in order: the tiers overlap, and bits are not bytes. "
    f"2 TB/s is an A100's memory ({accelerator('A100 SXM 80GB').memory_bandwidth / 1e12:.2f}); an H100 has {accelerator('H100 SXM').memory_bandwidth / 1e12:.2f}. "
    f"This machine (CPU): {', '.join(f'{t.name} {t.bandwidth / 1e9:.1f} GB/s' for t in tiers)}. And bandwidth is half of the story: "
    f"an object store's hundreds of MB/s come after tens of milliseconds, a disk's first 4 KiB here after {tiers[-1].latency * 1e6:.0f} µs",
)

# %% [markdown]
# The page cache can look faster than memory itself: a copy in memory writes as many bytes as it reads, while a file is read
# into a buffer of 1 MiB that stays in the processor's cache. The time of the smallest reads is mostly Python's own. And on a
# virtual machine the disk may be somebody's cache: a measured number is a fact about this machine, today.

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
