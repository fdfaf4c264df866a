"""Running and grading whole labs: `make course`, its pages, and what it keeps of a green run."""
