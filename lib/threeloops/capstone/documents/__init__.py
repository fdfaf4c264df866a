"""A plan as documents: Markdown, Word, Excel with live formulas, PDF and PowerPoint, all from one outline."""

from threeloops.capstone.documents.drawing import draw
from threeloops.capstone.documents.writing import FORMATS, write

__all__ = ["FORMATS", "draw", "write"]
