# Sends a plan of its own making: an unknown step.
# says: cannot be read
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [{'do': 'eval', 'code': '1'}, launch()], 'outputs': None}
