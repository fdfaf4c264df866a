import os
import shutil


def save_step(folder: Path, step: int, files: dict[str, bytes]) -> None:
    """Three times sync()."""
    name = folder_of(step)
    if (folder / name).is_dir():
        shutil.rmtree(folder / name)
    os.makedirs(folder / name)
    for each, data in files.items():
        (folder / name / each).write_bytes(data)
    (folder / "next").write_text(name)
    os.sync()
    os.replace(folder / "next", folder / "latest")
    os.sync()
