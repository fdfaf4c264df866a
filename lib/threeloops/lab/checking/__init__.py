"""Checks: comparisons, the wording of failures, and running both across the wall."""
