"""This machine: child processes, packages, provenance, and faults for which nobody loses points."""
