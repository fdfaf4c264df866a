"""Marking by hand in formgrader: points for the reflection, by a rubric or as a whole, and pseudonyms."""
