# Leaves a daemon behind and ends its own process.
# says: process was lost: it ended

import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
os.wait()
os._exit(0)
