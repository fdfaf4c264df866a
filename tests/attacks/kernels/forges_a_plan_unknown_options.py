# Sends a plan of its own making: options that are none of a launch.
# says: cannot be read (a word)
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(options=dict(pre_hook=1))], 'outputs': out}
