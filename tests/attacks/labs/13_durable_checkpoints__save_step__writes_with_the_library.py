# Calls the library's own functions.

import shutil

from threeloops.files import replacing, sync


def save_step(folder, step, files):
    place = folder / folder_of(step)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in files.items():
        with replacing(place / name) as file:
            file.write(data)
    sync(place)
    sync(folder)
    with replacing(folder / "latest") as file:
        file.write(place.name.encode())
    sync(folder)
