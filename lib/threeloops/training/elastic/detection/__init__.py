"""What tells that something is wrong: checksums, a flight recorder, and losses that are known."""

from threeloops.training.elastic.detection.silent import (
    checksum,
    cross_check,
    cross_check_cost,
    odd_ranks,
    odd_ranks_cost,
    outlying,
)

__all__ = ["checksum", "cross_check", "cross_check_cost", "odd_ranks", "odd_ranks_cost", "outlying"]
