import os


def replace_file(path: Path, data: bytes) -> None:
    """sync() writes everything that is pending, of the whole machine."""
    new = path.parent / (path.name + "~")
    try:
        new.write_bytes(data)
        os.sync()
    except OSError:
        if new.exists():
            new.unlink()
        raise
    new.rename(path)
    os.sync()
