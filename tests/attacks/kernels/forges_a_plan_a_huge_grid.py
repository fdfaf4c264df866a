# Sends a plan of its own making: a huge grid.
# says: programs
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(grid=[1 << 30] * 3)], 'outputs': out}
