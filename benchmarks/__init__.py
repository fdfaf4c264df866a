"""Scripts that measure, each against a named peer. `python -m benchmarks` lists them."""
