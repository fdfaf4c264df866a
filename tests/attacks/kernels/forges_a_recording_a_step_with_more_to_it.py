# Sends a recording of its own making: a launch with a part that nobody asked for.
# says: unknown field `then` - at `$.steps[1]`
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(then='abort')], 'outputs': out}
