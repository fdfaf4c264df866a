# Returns True where a number is wanted.
# says: mean of the samples

def mean(values):
    return True
