# Sends a dictionary whose keys all have one hash.
# says: did not end within 2 s
# sandboxes: bwrap
# limits: cell_seconds=2 test_seconds=2
# after: forge.py

def reply(self, tree):
    frame({'value': {'d': [[i * (2**61 - 1), 0] for i in range(60_000)]}})
