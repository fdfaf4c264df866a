# Sends a recording of its own making: no steps.
# says: a form that cannot be read (steps)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': 5, 'outputs': None}
