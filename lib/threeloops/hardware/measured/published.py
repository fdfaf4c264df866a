"""Read the published tables, in SI units and with the names of the hardware table.

Source: aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), thinned. `tables/manifest.json` says what was changed, and what
was cold or warm when each table was timed. The clocks are those of a burst, not of hours under load.
"""

import csv
import gzip
import io
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

__all__ = ["MEASURED_BY", "Table", "measured"]

MEASURED_BY = "measured by NVIDIA (aiconfigurator-core 0.12.0), not by us"
_ELEMENT_BYTES = {"half": 2, "int8": 1}
_FOLDER = files("threeloops.hardware.measured") / "tables"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length. A number is a float64, all else a string. `timing` says how the rows were timed."""

    name: str
    timing: str
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"{self.name} has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns[column]

    def where(self, **values: object) -> "Table":
        """Return the rows whose columns have these values: `measured("gemm").where(device="H100 SXM", m=128)`.

        Raises KeyError for a column that does not exist, and LookupError, with the values of the column that rows
        without it would have, if no row is left.
        """
        table = self
        for column, value in values.items():
            chosen = table[column] == value
            if not chosen.any():
                there = ", ".join(str(other) for other in np.unique(table[column])[:20])
                raise LookupError(f"{self.name}: no row has {column} = {value!r}; there are {there}")
            table = table.rows(chosen)
        return table

    def rows(self, chosen: np.ndarray) -> "Table":
        """Return the rows that a mask or an array of indices chooses."""
        return Table(self.name, self.timing, {name: values[chosen] for name, values in self.columns.items()})


@cache
def measured(name: str) -> Table:
    """Return a table: attention_decode, attention_prefill, custom_all_reduce, disaggregated, gemm, mla_decode, moe,
    moe_all_to_all, nccl or serving.

    Each row of a kernel has its `device`, as the hardware table calls it, and its `seconds` per call. `bytes` of nccl
    and custom_all_reduce is the size of the message in bytes; the files count elements. Raises LookupError for an
    unknown name.
    """
    manifest = _manifest()
    if name not in manifest["tables"]:
        raise LookupError(f"no table is called {name!r}; there are {', '.join(sorted(manifest['tables']))}")
    packed = (_FOLDER / f"{name}.csv.gz").read_bytes()
    header, *lines = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    columns = {
        column: _numbers(np.array(values)) for column, values in zip(header, zip(*lines, strict=True), strict=True)
    }
    place = "system" if "system" in columns else "device"
    columns["device"] = np.array([manifest["devices"].get(key, key) for key in columns.pop(place)])
    if "us" in columns:
        columns["seconds"] = columns.pop("us") * 1e-6
    if name == "nccl":
        columns["bytes"] = columns["message_size"] * np.vectorize(_ELEMENT_BYTES.get)(columns["nccl_dtype"])
    if name == "custom_all_reduce":
        columns["bytes"] = columns["message_size"] * _ELEMENT_BYTES["half"]
    for values in columns.values():
        values.setflags(write=False)  # every caller gets the same arrays
    return Table(name, manifest["tables"][name]["timing"], columns)


def _manifest() -> dict[str, Any]:
    return json.loads((_FOLDER / "manifest.json").read_text(encoding="utf-8"))


def _numbers(values: np.ndarray) -> np.ndarray:
    try:
        return values.astype(float)
    except ValueError:
        return values
