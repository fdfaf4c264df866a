# Promises 512 MiB and never sends them.
# says: did not answer within 2 s
# limits: cell_seconds=2 test_seconds=2
# after: forge.py

def reply(self, tree):
    raw.sendall(struct.pack('<IIQQ', 12, 1, 512 << 20, 512 << 20) + b'{"value": 0}')
