# Returns 50,000 objects, each of which becomes a handle.
# says: plain data

def mean(values):
    return [object() for _ in range(50_000)]
