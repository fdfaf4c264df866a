# expect: times what is needed
def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    return Settings(16, 48)
