"""Checks: what is compared, how a failure is worded, and how they run across the wall."""
