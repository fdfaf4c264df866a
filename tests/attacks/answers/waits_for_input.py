# Waits for input that nobody gives.
# says: Error

def mean(values):
    return float(input('the mean? '))
