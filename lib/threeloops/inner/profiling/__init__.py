"""Profiles of a training step's time: traces, operators, gaps, memory, and what eager operators move."""
