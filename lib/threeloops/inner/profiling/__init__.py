"""Where the time of a training step goes: traces, operators, gaps, memory, and what eager operators move."""
