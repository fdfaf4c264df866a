# Sends a recording of its own making: no steps.
# says: got `int` - at `$.steps`
# other: any
# after: forge_recording.py

recording = lambda: {'steps': 5, 'outputs': None}
