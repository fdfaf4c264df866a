import os


def replace_file(path: Path, data: bytes) -> None:
    """Unbuffered, and more fsyncs than are needed."""
    new = path.with_suffix(path.suffix + ".new")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with open(new, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file)
        os.fsync(folder)
        os.replace(new, path)
        os.fsync(folder)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(folder)
