"""Markdown files that contain programs, readable for people and run by the grader: a lab's answers, and the tests'
attacks."""
