# Sends a plan of its own making: the input as output.
# says: no kernel wrote
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch()], 'outputs': place(0, [4, 32], [32, 1])}
