# Doubles its processes without end, each of which keeps a core busy.
# says: the submission's process was lost
# limits: cell_seconds=2 test_seconds=2
# sandboxes: bwrap ungrouped none

import os
for _ in range(9):
    try:
        os.fork()
    except OSError:
        pass
while True:
    pass
