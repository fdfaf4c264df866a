"""This machine: child processes, packages, provenance, and machine faults, which never cost a student points."""
