# Starts processes that sleep until the limit stops it.
# says: mean
# sandboxes: bwrap ungrouped none

import os, time
for _ in range(200):
    if os.fork() == 0:
        time.sleep(3600)

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
