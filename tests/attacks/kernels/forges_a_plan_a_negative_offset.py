# Sends a plan of its own making: a negative offset.
# says: cannot be read
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(place(1, [1], [1], -8))], 'outputs': out}
