import os
import tempfile


def replace_file(path: Path, data: bytes) -> None:
    """A name that nobody else has."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.close()
            os.remove(file.name)
            raise
    Path(file.name).replace(path)
    _settle(path.parent)


def _settle(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
