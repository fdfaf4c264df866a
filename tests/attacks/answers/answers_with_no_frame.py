# Sends bytes that are no frame.
# says: it sent more than may cross between processes
# after: forge.py

def reply(self, tree):
    raw.sendall(b'\xff' * 100)
