# Sends a tensor whose stride reaches far beyond its data.
# says: stride too large
# after: forge.py

def reply(self, tree):
    frame({'value': {'T': ['uint8', [2], 0, None, [1 << 40]]}}, b'xx')
