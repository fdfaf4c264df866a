# Sends a plan of its own making: another kernel.
# says: launches 'print'
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(kernel='print')], 'outputs': out}
