"""Colours for figures that colour-blind readers can tell apart: Okabe and Ito, "Color Universal Design" (2008)."""

from typing import NamedTuple

__all__ = ["palette"]


class _Palette(NamedTuple):
    blue: str = "#0072b2"
    orange: str = "#e69f00"
    green: str = "#009e73"
    vermillion: str = "#d55e00"
    purple: str = "#cc79a7"
    sky: str = "#56b4e9"
    yellow: str = "#f0e442"
    grey: str = "#7f7f7f"
    ink: str = "#222222"


palette = _Palette()
