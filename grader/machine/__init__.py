"""This machine: child processes, packages, provenance, and faults that are nobody's zero."""
