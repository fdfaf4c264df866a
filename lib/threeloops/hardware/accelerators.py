"""The hardware table: what vendors publish about accelerators, every number with its source.

The table is `accelerators.json`. Rates are dense: one that a data sheet prints "with sparsity" is halved or left out.
Link bandwidths are per direction: "900 GB/s" of NVLink adds both. Capacities are bytes: the "80 GB" of a data sheet are
80 GiB of DRAM chips. An unpublished value is None. The note "as quoted" marks a number that was not read in the
document itself, but where someone else quotes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Accelerator", "Caches", "DTYPES", "accelerator", "accelerators", "dtype_name"]

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
"""The table has a rate, "not published" or "not in the hardware" for each of these and every accelerator. Some have
variants: `fp64_matrix`, `fp32_matrix` (matrix cores, where the plain name means the vector units) and
`fp16_fp16_accumulate`, `fp8_fp16_accumulate` (where the plain name, accumulating in FP32, has half the rate). Some have
`fp6` and `fp4` too, or `mxfp8` and `mxfp4` where the printed rate is one of block-scaled formats."""

_TORCH_NAMES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Caches:
    """Bytes of on-chip memory: the first three per multiprocessor, the last two for the whole device.

    On NVIDIA GPUs L1 and shared memory divide `l1_bytes` between them; shared memory can take up to
    `shared_memory_bytes` of it, and one thread block up to `shared_memory_per_block_bytes`.
    """

    l1_bytes: int | None = None
    shared_memory_bytes: int | None = None
    shared_memory_per_block_bytes: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None

    @property
    def last_level_bytes(self) -> int | None:
        """A larger buffer is read from memory."""
        return self.l3_bytes or self.l2_bytes or self.l1_bytes


@dataclass(frozen=True)
class Accelerator:
    """One device. Rates in FLOP/s (a multiply-add is two), bandwidths in bytes/s, clocks in Hz.

    `multiprocessors`: SMs, compute units, TensorCores (TPU), NeuronCores, GPU cores (Apple) or CPU cores. Each has
    `fp32_lanes` lanes of one multiply-add per clock, and `matrix_units` matrix units (tensor cores) of `matrix_fma`
    16-bit multiply-adds per clock, accumulated in FP32. `link_bandwidth` is the sum over all links of a device that may
    lead to its own node. `link_topology` says where they lead: "switch" (all of it to any device of the node), "mesh"
    (a share to each of `link_neighbours`), "pair" (the other card of a bridge), "torus" (two neighbours in each
    dimension), or None. `matrix_clock_hz` is set only where matrix work boosts to another clock. `power_watts` is the
    most that the board may draw (TDP, TBP, TGP), including a CPU in the same package. `absent`: dtypes that the
    hardware lacks. `sources` maps a field ("memory_bytes", "rates.bf16", "caches.l2_bytes") to its document and how it
    was read.
    """

    name: str
    vendor: str
    year: int | None
    memory_bytes: int
    memory_bandwidth: float
    rates: dict[str, float] = field(hash=False)
    caches: Caches = Caches()
    multiprocessors: int | None = None
    clock_hz: float | None = None
    matrix_clock_hz: float | None = None
    fp32_lanes: int | None = None
    matrix_units: int | None = None
    matrix_fma: int | None = None
    link_name: str | None = None
    link_bandwidth: float | None = None
    link_topology: str | None = None
    link_neighbours: int | None = None
    host_link_name: str | None = None
    host_link_bandwidth: float | None = None
    power_watts: float | None = None
    absent: frozenset[str] = frozenset()
    sources: dict[str, str] = field(default_factory=dict, hash=False, repr=False)

    def rate(self, dtype: object) -> float:
        """Dense FLOP/s for `dtype`: a name of the table ("bf16") or torch's (torch.bfloat16).

        Raises LookupError, saying whether the hardware lacks the type or nobody published its rate.
        """
        name = dtype_name(dtype)
        if name in self.rates:
            return self.rates[name]
        has = f"it has {', '.join(self.rates)}" if self.rates else "none of its rates is in the table"
        if name in self.absent:
            raise LookupError(f"{self.name} has no {name.upper()}: {self.note(f'rates.{name}')}; {has}")
        if f"rates.{name}" in self.sources:
            raise LookupError(f"{self.name}: no {name} rate is known ({self.note(f'rates.{name}')}); {has}")
        raise LookupError(f"dtype = {str(dtype)!r}: {self.name} has no rate of that name; {has}")

    def note(self, name: str) -> str:
        """Return how the field called `name` was read, without its document: "dense", "not printed".

        "NVIDIA Ada GPU Architecture (NVIDIA, 2023): not printed" gives "not printed". Without a source it is "".
        """
        return self.sources.get(name, "").split("): ", 1)[-1]


def dtype_name(dtype: object) -> str:
    """The table's name of a dtype: torch.bfloat16, "torch.bfloat16", "bfloat16" and "BF16" are all "bf16"."""
    name = str(dtype).removeprefix("torch.").lower()
    return "fp8" if name.startswith("float8_e") else _TORCH_NAMES.get(name, name)


def accelerators() -> dict[str, Accelerator]:
    """The table by name, a fresh copy for each call."""
    table = _read_table()
    return {entry["name"]: _from_entry(entry, table["documents"]) for entry in table["accelerators"]}


def accelerator(name: str) -> Accelerator:
    """Return the accelerator called `name`: its name, an alias ("H100") or the driver's name ("NVIDIA H100 80GB HBM3").

    Capitals, spaces and hyphens do not matter. Raises LookupError with the closest names.
    """
    table = _read_table()
    names = {_spelling(alias): entry for entry in table["accelerators"] for alias in (entry["name"], *entry["aliases"])}
    wanted = _spelling(name)
    if wanted in names:
        return _from_entry(names[wanted], table["documents"])
    close = [spelling for spelling in names if wanted and (wanted in spelling or spelling in wanted)]
    close += get_close_matches(wanted, names, n=4, cutoff=0.5)
    close_names = list(dict.fromkeys(names[spelling]["name"] for spelling in close))[:4]
    hint = f"did you mean {' or '.join(close_names)}? " if close_names else ""
    raise LookupError(f"no accelerator is called {name!r}: {hint}accelerators() lists all {len(table['accelerators'])}")


def _spelling(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@cache
def _read_table() -> dict[str, Any]:
    return json.loads((files("threeloops.hardware") / "accelerators.json").read_text(encoding="utf-8"))


def _from_entry(entry: Mapping[str, Any], documents: Mapping[str, Any]) -> Accelerator:
    """Separate an entry's values from their sources; an entry's cells are {"value", "source", "note"}."""
    cells = {name: cell for name, cell in entry.items() if isinstance(cell, Mapping) and "source" in cell}
    sources = {}
    for prefix, group in (("", cells), ("rates.", entry["rates"]), ("caches.", entry["caches"])):
        for name, cell in group.items():
            document = documents[cell["source"]]
            title = f"{document['title']} ({document['publisher']}, {document['year']})"
            sources[prefix + name] = f"{title}: {cell['note']}" if cell["note"] else title
    return Accelerator(
        **{name: entry[name] for name in ("name", "vendor", "year")},
        **{name: cell["value"] for name, cell in cells.items()},
        rates={dtype: cell["value"] for dtype, cell in entry["rates"].items() if cell["value"] is not None},
        caches=Caches(**{name: cell["value"] for name, cell in entry["caches"].items()}),
        absent=frozenset(dtype for dtype, cell in entry["rates"].items() if cell.get("absent")),
        sources=sources,
    )
