"""How long a kernel will take on a device, from what it moves and computes: an interval, and what it rests on."""

from threeloops.inner.predict.prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
