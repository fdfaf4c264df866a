# Imports a library module that this lab withholds.
# says: withheld in graded runs

from threeloops.inner.roofline import Roofline

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
