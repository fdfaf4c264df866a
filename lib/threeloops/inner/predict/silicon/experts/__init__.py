"""The time of a layer of experts on one accelerator: routing, grouped products, and the exchange of tokens."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.predict.silicon.experts.exchange import Exchange, exchange_seconds
    from threeloops.inner.predict.silicon.experts.grouped import Experts, QuantizedExperts, experts_seconds
    from threeloops.inner.predict.silicon.experts.routing import Loads, loads
else:
    import_on_demand(__name__)

__all__ = ["Exchange", "Experts", "Loads", "QuantizedExperts", "exchange_seconds", "experts_seconds", "loads"]
