# Sends a recording of its own making: a launch with a part that nobody asked for.
# says: cannot be read (its parts)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(then='abort')], 'outputs': out}
