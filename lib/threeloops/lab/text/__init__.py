"""Numbers and plain data in words."""
