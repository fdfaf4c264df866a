"""Let the grader's side observe the student's threads: the files that they change, and the calls that they make."""
