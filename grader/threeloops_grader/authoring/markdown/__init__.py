"""Markdown files with programs, which people read and the grader runs: a lab's answers, and the tests' attacks."""
