# Sends a recording of its own making: options that are none of a launch.
# says: cannot be read (a word)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(options=dict(pre_hook=1))], 'outputs': out}
