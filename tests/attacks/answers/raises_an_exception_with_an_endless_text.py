# Raises an error with a message of 60 MB.
# says: values

def fail():
    raise ValueError('values' * 10**7)
def mean(values):
    return fail()
