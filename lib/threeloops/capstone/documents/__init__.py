"""A plan as documents: Markdown, Word, Excel with live formulas, PDF and PowerPoint, all from one outline."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.capstone.documents.drawing import draw
    from threeloops.capstone.documents.writing import FORMATS, write
else:
    import_on_demand(__name__)

__all__ = ["FORMATS", "draw", "write"]
