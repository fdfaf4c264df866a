# Sends a recording of its own making: a huge grid.
# says: programs
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(grid=[1 << 30] * 3)], 'outputs': out}
