import os


def save_step(folder: Path, step: int, files: dict[str, bytes]) -> None:
    """All writes, then all fsyncs, so that the disk may order them."""
    place = folder / folder_of(step)
    place.mkdir(exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    todo = {place / name: data for name, data in files.items()} | {folder / ".latest": place.name.encode()}
    descriptors = []
    for path, data in todo.items():
        descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        descriptors.append(descriptor)
    descriptors += [os.open(place, os.O_RDONLY), os.open(folder, os.O_RDONLY)]
    for descriptor in descriptors:
        os.fsync(descriptor)
    os.replace(folder / ".latest", folder / "latest")
    os.fsync(descriptors[-1])
    for descriptor in descriptors:
        os.close(descriptor)
