import contextlib
import os


def replace_file(path: Path, data: bytes) -> None:
    """With the system's own calls."""
    part = os.path.join(path.parent, f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        try:
            at = 0
            while at < len(data):
                at += os.write(descriptor, data[at:])
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
