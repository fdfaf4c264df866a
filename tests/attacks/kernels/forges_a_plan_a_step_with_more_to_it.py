# Sends a plan of its own making: a launch with a part that nobody asked for.
# says: cannot be read (its parts)
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(then='abort')], 'outputs': out}
