"""What students hand in: folders, names and notebooks, read within limits."""
