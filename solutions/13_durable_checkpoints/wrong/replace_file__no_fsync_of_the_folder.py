# expect: a save had returned, and what it saved is lost
# fails: states
def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new one, whenever the power fails."""
    import os

    new = path.with_name(path.name + ".tmp")
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
