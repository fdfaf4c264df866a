# Uses await at the top level of the cell, which a notebook allows.
# earns: 40

import asyncio
await asyncio.sleep(0)

def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
