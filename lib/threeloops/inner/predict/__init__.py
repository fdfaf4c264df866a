"""How long a kernel will take on a device, from what it moves and computes: an interval, and what it rests on."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.predict.prediction import Prediction, predict
else:
    import_on_demand(__name__)

__all__ = ["Prediction", "predict"]
