"""Files that travel between instructor and students: bundles, submissions, and Gradescope's autograder."""
