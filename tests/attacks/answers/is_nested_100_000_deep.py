# Returns a list nested 100,000 deep.
# says: deep cannot cross the wall

x = 3.0
for _ in range(100_000):
    x = [x]
def mean(values):
    return x
