"""Errors of a cluster. Every failure, including a hang, becomes an error that names the ranks and lines involved."""

import re

__all__ = ["ClusterError", "Deadlock", "Mismatch", "RankFailed", "RankLost", "Unfinished"]


class ClusterError(RuntimeError):
    """A run of the cluster could not go on."""


class Deadlock(ClusterError):
    """Ranks wait for one another, and nothing is left that could wake them: one line for each rank that waits."""


class Mismatch(ClusterError):
    """Two ranks disagree about the data that they send each other."""


class Unfinished(ClusterError):
    """All ranks returned, and something that they began was never finished."""


class RankFailed(ClusterError):
    """A rank raised an exception, or its process ended. The message holds the traceback."""


class RankLost(ClusterError):
    """Raised in a rank that waited until the timeout for a rank that had died."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that had died by then. On a real cluster, a separate service learns this from heartbeats."""
        return tuple(int(rank) for rank in re.findall(r"rank (\d+) died at", str(self)))
