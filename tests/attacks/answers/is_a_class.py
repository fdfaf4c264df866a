# Is a class in place of a function.
# says: plain data

def mean(values):
    return float
