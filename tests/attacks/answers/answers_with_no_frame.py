# Sends bytes that are no frame.
# says: it sent more than may cross between processes
# other: 0
# after: forge.py

def reply(self, tree):
    raw.sendall(b'\xff' * 100)
