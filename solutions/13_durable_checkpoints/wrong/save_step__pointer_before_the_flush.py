# expect: neither the old nor the new content
# fails: states
def save_step(folder: Path, step: int, files: dict[str, bytes]) -> None:
    """All files of a step, and a pointer to them."""
    import os
    import shutil

    def sync(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write(path, data):
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    place = folder / folder_of(step)
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    write(folder / "latest.tmp", place.name.encode())
    os.replace(folder / "latest.tmp", folder / "latest")
    sync(folder)
    for name, data in files.items():
        write(place / name, data)
    sync(place)
    sync(folder)
