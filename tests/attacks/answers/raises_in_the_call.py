# Raises an error when it is called.
# says: ZeroDivisionError

def mean(values):
    return 1 // 0
