# Has an empty class, and replaces the functions that drive it where they run.

import threeloops.lab.disks.saving as driver


class BackgroundSaver:
    pass


class Made:
    pass


driver._made = lambda *_: Made()
driver._save = driver._wait = lambda *_: None
