"""The names of `from threeloops.lab import show`: a figure, a table, a measurement beside its prediction, a notice."""

from threeloops.lab.predictions.against import against_prediction
from threeloops.lab.predictions.busy import busy_notice
from threeloops.lab.widgets.pictures import figure, table

__all__ = ["against_prediction", "busy_notice", "figure", "table"]
