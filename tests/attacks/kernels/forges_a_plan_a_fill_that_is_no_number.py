# Sends a plan of its own making: a fill by a text.
# says: cannot be read (a number)
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, dict(do='fill', to=out, value='1'), launch()], 'outputs': out}
