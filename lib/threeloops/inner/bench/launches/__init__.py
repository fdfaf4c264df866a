"""How a launch becomes plain data."""
