# Returns 200,000 objects that cannot cross the wall.
# says: too large to cross

def mean(values):
    return [object() for _ in range(200_000)]
