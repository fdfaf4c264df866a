# Returns a complex number where a real one is wanted.
# says: a complex

def mean(values):
    return 3 + 0j
