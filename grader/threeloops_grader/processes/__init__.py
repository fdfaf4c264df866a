"""The two processes of a graded run: the student's process, and the grader's process, which runs the tests."""
