"""Predict how long a kernel will take on a device, from its traffic and its arithmetic, as an interval with its
assumptions."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.predict.prediction import Prediction, predict
else:
    import_on_demand(__name__)

__all__ = ["Prediction", "predict"]
