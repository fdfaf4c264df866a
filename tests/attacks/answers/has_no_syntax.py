# Is no Python.
# says: SyntaxError

def mean(values:
    return 3.0
