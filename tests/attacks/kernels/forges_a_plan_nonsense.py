# Sends a plan of its own making: nonsense.
# says: a form that cannot be read
# other: any
# after: forge_plan.py

plan = lambda: [1, 2, 3]
