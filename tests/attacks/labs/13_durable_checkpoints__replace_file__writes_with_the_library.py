# Calls the library's own functions, in two lines.

from threeloops.files import replacing, sync


def replace_file(path, data):
    with replacing(path) as file:
        file.write(data)
    sync(path.parent)
