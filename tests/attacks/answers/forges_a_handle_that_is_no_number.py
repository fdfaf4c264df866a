# Sends a handle that was never given out, for an object that does not exist.
# says: bad handle
# after: forge.py

def reply(self, tree):
    frame({'value': {'h': [1 << 60, 'object', 'x']}})
