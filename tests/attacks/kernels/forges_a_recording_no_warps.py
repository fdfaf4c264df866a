# Sends a recording of its own making: a launch with no warps.
# says: cannot be read (a number out of range)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(options=dict(num_warps=0))], 'outputs': out}
