# Returns a list that holds itself.
# says: deep cannot cross the wall

x = []
x.append(x)
def mean(values):
    return x
