"""Mutants of the reference answers, which measure how many faults a lab's tests notice."""
