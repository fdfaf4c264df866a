# Calls back into a function that no test passed to it.
# says: no test gave away
# after: forge.py

def reply(self, tree):
    frame({'callback': 0, 'value': [[], {}]})
