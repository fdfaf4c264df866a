# Sends half of a frame and ends.
# says: process was lost: it ended
# after: forge.py

def reply(self, tree):
    raw.sendall(struct.pack('<IIQ', 100, 0, 0)) or os._exit(0)
