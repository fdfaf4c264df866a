# Stands under a cell magic, which a notebook allows.
# earns: 40

%%time

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
