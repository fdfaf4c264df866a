# Returns an integer of millions of digits.
# says: too large to cross

def mean(values):
    return 10 ** 5000
