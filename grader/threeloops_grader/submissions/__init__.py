"""Submissions of students: folders, names and notebooks, read within limits."""
