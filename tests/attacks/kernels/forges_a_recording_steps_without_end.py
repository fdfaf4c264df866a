# Sends a recording of its own making: steps without end.
# says: 5,000 steps
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate] * 5000, 'outputs': None}
