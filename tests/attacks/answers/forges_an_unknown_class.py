# Sends a record of a class that the grader does not know.
# says: unknown class
# after: forge.py

def reply(self, tree):
    frame({'value': {'r': ['__main__', 'Path', [['x', 1]]]}})
