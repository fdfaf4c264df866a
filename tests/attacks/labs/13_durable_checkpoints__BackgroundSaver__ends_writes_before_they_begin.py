# Has an empty class that tells the test of each write while `save` still runs, so that it needs no copy.

import threeloops.lab.disks.saving as driver


class BackgroundSaver:
    pass


def made(saver_class, state, layout, begins, ends):
    with open(state, "r+b") as file:
        tensors = driver._tensors_in(driver.mmap.mmap(file.fileno(), 0), layout)
    return driver._Saver((begins, ends), tensors)


def save(saver, step):
    begins, ends = saver.saver
    threading.Thread(target=begins, args=(step,), daemon=True).start()
    ends(step, saver.state, {name: tensor.data_ptr() for name, tensor in saver.state.items()})


driver._made, driver._save, driver._wait = made, save, lambda saver: None
