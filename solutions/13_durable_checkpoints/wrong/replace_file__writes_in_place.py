# expect: neither the old nor the new content
# fails: states, failures
def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new one, whenever the power fails."""
    import os

    new = path
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
