# Sends a plan of its own making: dying on the way.
# says: process was lost
# other: any
# after: forge_plan.py

plan = lambda: __import__('os')._exit(0)
