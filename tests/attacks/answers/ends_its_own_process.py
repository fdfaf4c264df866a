# Ends its process while the cell runs.
# says: process was lost: it ended

import os
os._exit(0)
