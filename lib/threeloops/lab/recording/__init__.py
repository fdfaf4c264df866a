"""Notes for pages without a kernel, made while the course is executed."""
