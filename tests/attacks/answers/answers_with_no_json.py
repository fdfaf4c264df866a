# Sends a frame whose text is not JSON.
# says: it broke the protocol
# after: forge.py

def reply(self, tree):
    frame(b'{"value": ')
