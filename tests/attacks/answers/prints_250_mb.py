# Prints 250 MB in one cell.
# says: more than one file may hold

print('x' * 250_000_000)

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
