"""The two processes of a graded run: the student's, and the grader's that runs the tests."""
