# Claims to have printed megabytes in answer to one call.
# says: mean of the samples
# after: forge.py

def reply(self, tree):
    frame({'value': 0.0, 'printed': 'x' * (4 << 20 - 1 >> 1)})
