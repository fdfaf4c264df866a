# Sends a recording of its own making: another kernel.
# says: launches 'print'
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(kernel='print')], 'outputs': out}
