"""Markdown files of programs that a person reads and the grader runs: a lab's answers, and the attacks of the tests."""
