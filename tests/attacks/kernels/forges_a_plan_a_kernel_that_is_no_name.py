# Sends a plan of its own making: a kernel that is no name.
# says: which its cell does not define
# other: any
# after: forge_plan.py

plan = lambda: {'steps': [allocate, launch(kernel=[1])], 'outputs': out}
