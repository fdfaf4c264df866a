import os


def replace_file(path: Path, data: bytes) -> None:
    """Each write is on the disk when it returns, so no fsync of the file is needed; the folder's is."""
    new = path.with_name(path.name + ".new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC)
    try:
        while data:
            data = data[os.write(file, data) :]
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise
    finally:
        os.close(file)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
