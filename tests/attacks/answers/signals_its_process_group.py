# Signals its process group and every process it may.
# says: mean of 1 numbers
# sandboxes: bwrap

import os, signal
for pid, number in ((0, signal.SIGSTOP), (0, signal.SIGKILL), (-1, signal.SIGKILL)):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
def mean(values):
    return 3.0
