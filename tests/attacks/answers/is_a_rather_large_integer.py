# Returns an integer too large for a float.
# says: too large to convert

def mean(values):
    return 10 ** 4000
