# Sends a plan of its own making: a storage that is not there.
# says: cannot be read
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(place(7, [1], [1]))], 'outputs': out}
