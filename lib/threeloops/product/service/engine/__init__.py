"""The engine in a process of its own, so that computing never delays an answer, a refusal or a probe.

`process.py` is that process, `client.py` is the front's side of it, and `supervisor.py` restarts it when it dies. Only
this process imports torch.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.request import EngineStopped, RequestFailed
    from threeloops.product.service.engine.client import EngineClient
    from threeloops.product.service.engine.messages import EngineSpec, EngineStats
    from threeloops.product.service.engine.supervisor import ServedModel, Supervisor
else:
    import_on_demand(__name__)

__all__ = [
    "EngineClient", "EngineSpec", "EngineStats", "EngineStopped", "RequestFailed", "ServedModel", "Supervisor",
]  # fmt: skip
