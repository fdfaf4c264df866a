# Calls itself for ever.
# says: RecursionError

def mean(values):
    return mean(values)
