# Starts as many busy processes as it may, each in a session of its own, for which some kernels count a share each.
# says: process was lost: it did not answer within 2 s
# sandboxes: bwrap ungrouped
# limits: cell_seconds=2 test_seconds=2

import os

for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        break
while True:
    pass
