# Sends a JSON list where a frame holds an object.
# says: it broke the protocol
# after: forge.py

def reply(self, tree):
    frame(b'[3.0]')
