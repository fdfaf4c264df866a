"""Checks of a student's answers: comparisons, the wording of failures, and their use in a notebook and behind the
wall."""
