# Sends a record of a library class, to have the grader build it.
# says: unknown class
# after: forge.py

def reply(self, tree):
    frame({'value': {'r': ['threeloops.lab.checking.check', '_Check', []]}})
