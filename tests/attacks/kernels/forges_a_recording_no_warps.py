# Sends a recording of its own making: a launch with no warps.
# says: Expected `int` >= 1 - at `$.steps[1].options
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(options=dict(num_warps=0))], 'outputs': out}
