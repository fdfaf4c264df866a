# Prints what every test gives it, and answers honestly: printing is no offence, but nobody gets to read it.
# says: the mean of a list (5 checks)
# earns: 40


def mean(values):
    print("the inputs are", values)
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
