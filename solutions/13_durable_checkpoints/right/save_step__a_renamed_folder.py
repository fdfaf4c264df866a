import os
import shutil


def save_step(folder: Path, step: int, files: dict[str, bytes]) -> None:
    """The folder gets its name when it is complete."""
    place, half = folder / folder_of(step), folder / (folder_of(step) + ".half")
    for left in (place, half):
        shutil.rmtree(left, ignore_errors=True)
    half.mkdir()
    for name in files:
        with (half / name).open("xb") as file:
            file.write(files[name])
            file.flush()
            os.fsync(file)
    _sync(half)
    half.rename(place)
    _sync(folder)
    pointer = folder / "latest.half"
    with pointer.open("w") as file:
        file.write(place.name)
        file.flush()
        os.fsync(file)
    pointer.replace(folder / "latest")
    _sync(folder)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
