# Does everything right, but in a child process.

import os


def replace_file(path, data):
    child = os.fork()
    if child == 0:
        try:
            new = path.with_name(path.name + ".tmp")
            with open(new, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
            os.sync()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
