"""Prices, each with its source and its date."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from threeloops.hardware.accelerators import accelerator

__all__ = ["Item", "Price", "Prices"]

Item = Literal["cloud", "purchase", "power", "network", "hosting", "electricity", "pue", "support"]
_OF_ACCELERATORS = ("cloud", "purchase", "power")
_STRICT = ConfigDict(extra="forbid", strict=True)
_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=_STRICT)
class Price:
    """One row: `item` of `accelerator`, or of any if it has none. An estimate says in `note` how it was made."""

    item: Item
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: _Text
    level: Literal["published", "estimate"]
    source: _Text
    date: _Text
    accelerator: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _says_of_what(self) -> "Price":
        if (self.item in _OF_ACCELERATORS) != bool(self.accelerator):
            which = "a name of an accelerator" if self.item in _OF_ACCELERATORS else "no accelerator"
            raise ValueError(f"item = {self.item!r}, accelerator = {self.accelerator!r}: expected {which}")
        if self.level == "estimate" and not self.note:
            raise ValueError(f"item = {self.item!r}: an estimate; expected a note that says how it was made")
        return self

    @property
    def origin(self) -> str:
        """The source, the date, and how an estimate was made, in one line."""
        return f"{self.source}, {self.date}" + (f"; estimate: {self.note}" if self.level == "estimate" else "")


@dataclass(frozen=True, config=_STRICT)
class Prices:
    price: Annotated[tuple[Price, ...], Field(min_length=1)]
    """The rows; of several for the same thing the last one counts."""

    def find(self, item: Item, name: str = "") -> Price | None:
        """Return the price of `item` of the accelerator called `name`, in any spelling, or None if there is none."""
        wanted = accelerator(name).name if name else ""
        for row in reversed(self.price):
            if row.item == item and (accelerator(row.accelerator).name if row.accelerator else "") == wanted:
                return row
        return None

    def with_cloud(self, factor: float) -> "Prices":
        """The same table with clouds at `factor` times their price."""
        return Prices(
            tuple(replace(row, value=factor * row.value) if row.item == "cloud" else row for row in self.price)
        )
