"""Grade one exercise of a class again, after its test was repaired, and change nothing else."""
