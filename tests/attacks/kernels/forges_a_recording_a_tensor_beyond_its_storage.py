# Sends a recording of its own making: a tensor beyond its storage.
# says: outside of its storage
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(view(1, [4, 32], [32, 1], 1))], 'outputs': out}
