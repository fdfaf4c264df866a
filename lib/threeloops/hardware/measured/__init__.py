"""Times of kernels that NVIDIA measured and published: products, attention, collectives, experts, serving.

They are another level of evidence than a model, this CPU or a GPU of ours: print `MEASURED_BY` and the device wherever
one of them is shown.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.hardware.measured.links import host_link_share, link_share
    from threeloops.hardware.measured.published import MEASURED_BY, Table, measured
else:
    import_on_demand(__name__)

__all__ = ["MEASURED_BY", "Table", "host_link_share", "link_share", "measured"]
