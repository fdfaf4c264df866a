# Sends a dictionary whose keys all have one hash.
# says: did not end within 2 s
# other: 0
# sandboxes: bwrap
# limits: cell_seconds=2 test_seconds=2 notebook_seconds=6
# after: forge.py

def reply(self, tree):
    frame({'value': {'d': [[i * (2**61 - 1), 0] for i in range(60_000)]}})
