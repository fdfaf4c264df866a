"""What a lab is: its source, cells, tests and data, and the rules it is held to."""
