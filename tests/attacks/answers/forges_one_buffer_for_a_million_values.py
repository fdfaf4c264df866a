# Sends one buffer and a million values that each name it.
# says: no such buffer
# after: forge.py

def reply(self, tree):
    frame({'value': [{'b': 0}] * 200_000}, bytes(64 << 20))
