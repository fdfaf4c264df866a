"""Files copied whole or not at all, folders compared by content, and folders restored after a failure."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory

from threeloops.files import replacing

__all__ = ["differences", "files_below", "replace_file", "restored_if_it_fails", "sha256"]


def replace_file(path: Path, source: Path) -> None:
    """Make `path` a copy of `source`, whole or not at all; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(source.read_bytes())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(made: Path, present: Path) -> dict[str, str]:
    """Return the relative names of files whose content differs between the expected and the actual folder."""
    wanted = files_below(made)
    files = files_below(present)
    return {
        name: "is missing" if name not in files else "is not part of the release" if name not in wanted else "differs"
        for name in sorted(wanted | files)
        if name not in wanted & files or not cmp(made / name, present / name, shallow=False)
    }


def files_below(folder: Path) -> set[str]:
    """Return the relative names of the files in a folder, without JupyterLab's checkpoints."""
    return {
        name
        for path in folder.rglob("*")
        if not path.is_dir() and ".ipynb_checkpoints" not in (name := path.relative_to(folder).as_posix())
    }


@contextmanager
def restored_if_it_fails(folder: Path) -> Iterator[None]:
    """Put the folder back as it was if the block raises."""
    with TemporaryDirectory() as there:
        before = Path(there) / "before"
        if folder.is_dir():
            shutil.copytree(folder, before)
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if before.is_dir():
                shutil.copytree(before, folder)
            raise
