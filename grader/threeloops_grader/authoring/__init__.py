"""The parts of a lab: its source, cells, tests and data, and the rules that it has to follow."""
