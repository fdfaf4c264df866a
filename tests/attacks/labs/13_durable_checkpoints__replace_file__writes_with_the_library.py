# The library's own functions do it in two lines.

from threeloops.files import replacing, sync


def replace_file(path, data):
    with replacing(path) as file:
        file.write(data)
    sync(path.parent)
