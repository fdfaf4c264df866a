# Returns a generator that never ends.
# says: plain data

import itertools as it
def mean(values):
    return it.count()
