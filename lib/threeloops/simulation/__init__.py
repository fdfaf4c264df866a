"""Time that is computed instead of waited for: clocks, links, pipelines of stages, and charts of what they did."""
