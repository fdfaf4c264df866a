# expect: ms per sample: expected at most
def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    return Settings(4, 8)
