# Sends a recording of its own making: a storage that is not there.
# says: cannot be read
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(view(7, [1], [1]))], 'outputs': out}
