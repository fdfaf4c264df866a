"""Running and grading whole labs: the commands behind `course`, `run` and `grade`."""
