import os
import tempfile


def replace_file(path: Path, data: bytes) -> None:
    """A name that nobody else has."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        os.remove(name)
        raise
    Path(name).replace(path)
    _settle(path.parent)


def _settle(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
