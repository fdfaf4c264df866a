# Raises SystemExit when it is called.
# says: SystemExit

import sys
def mean(values):
    return sys.exit(0)
