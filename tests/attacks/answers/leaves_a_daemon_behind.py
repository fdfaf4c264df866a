# Leaves a daemon behind that would outlive the submission.
# earns: 40
# sandboxes: bwrap ungrouped none

import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
os.wait()

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
