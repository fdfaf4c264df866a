"""Commands for the author of a lab: begin one, and try its answers."""
