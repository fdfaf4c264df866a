# Sends four MiB of opening brackets, to exhaust the JSON reader's stack.
# says: it broke the protocol
# after: forge.py

def reply(self, tree):
    frame(b'[' * (4 << 20))
