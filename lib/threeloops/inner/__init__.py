"""The inner loop: what one GPU does, and what stops it."""
