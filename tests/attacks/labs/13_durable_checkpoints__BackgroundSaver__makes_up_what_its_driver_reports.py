# An empty class, and the functions that drive it replaced where they run.

import threeloops.lab.disks.saving as driver


class BackgroundSaver:
    pass


class Made:
    pass


driver._made = lambda *_: Made()
driver._save = driver._wait = lambda *_: None
