"""The training loop: many devices acting as one."""
