"""`make evidence`: what this machine can measure, in parts that go on where they stopped."""
