"""Time that is computed and not waited for: clocks, stages of a pipeline, and their picture."""
