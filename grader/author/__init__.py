"""What an author of a lab does: begin one, and try its answers."""
