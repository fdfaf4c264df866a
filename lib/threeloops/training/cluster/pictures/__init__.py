"""Pictures of a run of the virtual cluster: a Gantt chart with messages, a heat map of traffic, a Perfetto trace."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.cluster.pictures.links import link_matrix
    from threeloops.training.cluster.pictures.timelines import gantt
    from threeloops.training.cluster.pictures.trace import write_trace
else:
    import_on_demand(__name__)

__all__ = ["gantt", "link_matrix", "write_trace"]
