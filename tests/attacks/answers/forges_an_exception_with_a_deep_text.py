# Sends an exception whose text is nested data.
# says: error: 1
# after: forge.py

def reply(self, tree):
    frame(b'{"error": {"classes": [' + b'[' * 500 + b']' * 500 + b'], "message": 1}}')
