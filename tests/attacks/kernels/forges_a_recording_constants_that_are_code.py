# Sends a recording of its own making: constants that are code.
# says: unknown field `function` - at `$.steps[1].constants[...]`
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(launch(), constants=dict(BLOCK=dict(function=['os', 'abort'])))], 'outputs': out}
