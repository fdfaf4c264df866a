# Raises the error of a full disk, which would end the run of the whole class if it were the machine's.


def adamw_from_files(folder, parameter, gradient, step, chunk, options):
    raise OSError(28, "No space left on device")
