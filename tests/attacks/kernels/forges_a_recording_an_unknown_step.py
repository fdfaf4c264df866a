# Sends a recording of its own making: an unknown step.
# says: cannot be read
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [{'kind': 'eval', 'code': '1'}, launch()], 'outputs': None}
