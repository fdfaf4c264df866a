# Sends a recording of its own making: options that are none of a launch.
# says: the option 'pre_hook'
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(options=dict(pre_hook=1))], 'outputs': out}
