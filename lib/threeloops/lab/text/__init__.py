"""Numbers and plain data: recognised, compared, and put into words."""
