# Sends a plan of its own making: constants that are code.
# says: cannot be read (a constant)
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, dict(launch(), constants=dict(BLOCK=dict(function=['os', 'abort'])))], 'outputs': out}
