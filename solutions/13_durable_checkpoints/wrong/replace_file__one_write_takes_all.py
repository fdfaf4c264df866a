# expect: no write takes more than 100 bytes
# fails: failures
def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new one, whenever the power fails."""
    import os

    new = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
