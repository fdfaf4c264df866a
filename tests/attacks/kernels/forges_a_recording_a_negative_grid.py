# Sends a recording of its own making: a negative grid.
# says: cannot be read
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(grid=[-1, 1, 1])], 'outputs': out}
