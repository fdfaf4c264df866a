"""What travels between instructor and students as a file: bundles, submissions, and Gradescope's autograder."""
