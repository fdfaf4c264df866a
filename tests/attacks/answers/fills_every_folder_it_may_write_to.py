# Fills every folder it may write to, then answers honestly.
# earns: 40
# sandboxes: bwrap ungrouped

full = 0
for folder in ('.', '/tmp', '/dev/shm'):
    try:
        for n in range(10_000):
            open(f'{folder}/{n}', 'wb').write(bytes(1 << 20))
    except OSError as error:
        full += error.errno == 28
assert full == 3, full

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
