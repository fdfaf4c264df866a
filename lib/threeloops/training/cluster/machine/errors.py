"""What goes wrong on a cluster: each is an answer, with the ranks and lines that it is about, and none is a hang."""

__all__ = ["ClusterError", "Deadlock", "Mismatch", "RankFailed", "RankLost", "Unfinished"]


class ClusterError(RuntimeError):
    """A run of the cluster could not go on."""


class Deadlock(ClusterError):
    """Ranks wait for one another, and nothing is left that could wake them: one line for each rank that waits."""


class Mismatch(ClusterError):
    """Two ranks do not agree on what they send each other."""


class Unfinished(ClusterError):
    """All ranks returned, and something that they began was never finished."""


class RankFailed(ClusterError):
    """A rank raised an exception, or its process ended. The message holds the traceback."""


class RankLost(ClusterError):
    """Raised in a rank that waited until the timeout for a rank that had died."""
