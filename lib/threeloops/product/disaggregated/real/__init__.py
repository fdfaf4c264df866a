"""A prefill process and a decode process of the course's engine, and the keys and values that go from one to the other.

>>> async with DisaggregatedService(EngineSpec("tiny"), EngineSpec("tiny")) as service:
...     async with contextlib.aclosing(service.generate(request)) as tokens:
...         async for token in tokens:
...             ...

`prefill.py` and `decode.py` are the two roles, without processes. `process.py` runs one of them, `link.py` carries
blocks between two, and `service.py` is the front's side: it submits requests, and restarts a process that has died.
`replay.py` runs both roles in one thread, to measure or to predict.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.disaggregated.real.decode import DecodeRole
    from threeloops.product.disaggregated.real.link import BlockLink
    from threeloops.product.disaggregated.real.messages import CacheFormat, HandoverError, RoleState
    from threeloops.product.disaggregated.real.prefill import HANDOVERS, PrefillRole
    from threeloops.product.disaggregated.real.replay import TurnClock, TwoSidedReplay, replay_two_sides
    from threeloops.product.disaggregated.real.service import DisaggregatedService
else:
    import_on_demand(__name__)

__all__ = [
    "HANDOVERS", "BlockLink", "CacheFormat", "DecodeRole", "DisaggregatedService", "HandoverError", "PrefillRole",
    "RoleState", "TurnClock", "TwoSidedReplay", "replay_two_sides",
]  # fmt: skip
