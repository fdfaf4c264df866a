# Sends a recording of its own making: a kernel that is no name.
# says: which its cell does not define
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(kernel=[1])], 'outputs': out}
