"""`make evidence`: measurements of this machine, in parts that continue where they stopped."""
