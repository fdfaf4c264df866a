# Sends an exception whose text is nested data.
# says: a malformed answer came back (Expected `str`, got `array` - at `$.error.classes[0]`)
# after: forge.py

def reply(self, tree):
    frame(b'{"error": {"classes": [' + b'[' * 500 + b']' * 500 + b'], "message": 1}}')
