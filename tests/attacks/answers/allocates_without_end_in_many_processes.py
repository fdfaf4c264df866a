# Allocates memory in eight processes at once, each of them below the limit at first.
# says: MiB of memory
# limits: memory_mb=600 cell_seconds=5
# sandboxes: bwrap ungrouped none

import os, time
hold = []
for _ in range(8):
    if os.fork() == 0:
        while True:
            hold.append(bytearray(b'x' * (10 << 20)))
            time.sleep(0.01)
time.sleep(3600)
