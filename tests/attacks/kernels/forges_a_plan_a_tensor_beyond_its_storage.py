# Sends a plan of its own making: a tensor beyond its storage.
# says: outside of its storage
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(place(1, [4, 32], [32, 1], 1))], 'outputs': out}
