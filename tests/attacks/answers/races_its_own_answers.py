# Floods the channel with answers from four threads, to be one answer ahead.
# says: mean
# other: any
# after: forge.py

import threading

def flood():
    while True:
        frame({"value": 3.0, "printed": "", "ok": True})

[threading.Thread(target=flood, daemon=True).start() for _ in range(4)]
def reply(self, tree):
    usual(self, tree, [])
