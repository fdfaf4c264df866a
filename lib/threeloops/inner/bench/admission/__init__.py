"""Which kernels of a student's cell may be executed: pure functions over `tl.*`, by whitelist."""
