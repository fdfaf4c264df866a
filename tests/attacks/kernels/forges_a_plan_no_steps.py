# Sends a plan of its own making: no steps.
# says: a form that cannot be read (steps)
# other: any
# after: forge_plan.py

plan = lambda: {'steps': 5, 'outputs': None}
