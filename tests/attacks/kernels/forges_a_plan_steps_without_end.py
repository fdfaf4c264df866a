# Sends a plan of its own making: steps without end.
# says: 5,000 steps
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate] * 5000, 'outputs': None}
