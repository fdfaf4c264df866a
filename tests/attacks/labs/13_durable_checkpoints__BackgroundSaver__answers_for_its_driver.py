# Has an empty class that calls the test itself, right away, with the given tensors and no copy of them.

import threeloops.lab.disks.saving as driver


class BackgroundSaver:
    pass


def made(saver_class, state, layout, begins, ends):
    with open(state, "r+b") as file:
        tensors = driver._tensors_in(driver.mmap.mmap(file.fileno(), 0), layout)
    return driver._Saver((begins, ends), tensors)


def save(saver, step):
    begins, ends = saver.saver

    def write():
        begins(step)
        ends(step, saver.state, {name: 64 for name in saver.state})

    threading.Thread(target=write, daemon=True).start()


driver._made, driver._save, driver._wait = made, save, lambda saver: None
