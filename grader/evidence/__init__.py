"""`make evidence`: what this machine can measure, in parts that continue where they stopped."""
