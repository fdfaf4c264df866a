# Sends an array of bools that holds the byte 2.
# says: neither true nor false
# after: forge.py

def reply(self, tree):
    frame({'value': {'a': ['bool', [], 0]}}, b'\x02')
