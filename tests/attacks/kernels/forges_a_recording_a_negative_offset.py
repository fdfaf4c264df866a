# Sends a recording of its own making: a negative offset.
# says: cannot be read
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(view(1, [1], [1], -8))], 'outputs': out}
