# Kills its own process with a signal.
# says: process was lost: it ended

import os, signal
os.kill(os.getpid(), signal.SIGSEGV)
os.abort()
