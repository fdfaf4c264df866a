# Promises 256 MiB and sends them one byte at a time.
# says: did not answer within 2 s
# limits: cell_seconds=2 test_seconds=2
# after: forge.py

def reply(self, tree):

    raw.sendall(struct.pack("<IIQQ", 2, 1, 1 << 28, 1 << 28) + b"{}")
    while True:
        raw.send(b"x")
