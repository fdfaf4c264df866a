# Starts threads until the limit stops it.
# says: mean
# sandboxes: bwrap ungrouped

import threading, time
for _ in range(5000):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
