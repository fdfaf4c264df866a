"""A student's launches as data: recorded on their side, admitted, and executed on the grader's inputs."""
