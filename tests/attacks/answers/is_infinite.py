# Returns infinity.
# says: inf

def mean(values):
    return float('inf')
