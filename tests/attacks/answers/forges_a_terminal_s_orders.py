# Sends an error message that holds a terminal's control sequences.
# says: ]0;owned[2J?
# after: forge.py

def reply(self, tree):
    frame({'error': {'classes': ['builtins.ValueError'], 'message': '\x1b]0;owned\x07\x1b[2J\ud800'}})
