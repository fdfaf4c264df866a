# Displays 200 MB of text.
# earns: 40

from IPython.display import display
for _ in range(20):
    display('x' * 10**7)

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
