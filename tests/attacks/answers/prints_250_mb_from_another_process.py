# Prints 250 MB from a process of its own.
# earns: 40

import subprocess
subprocess.run('yes | head -c 250000000', shell=True)

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
