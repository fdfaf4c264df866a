# Sends a recording of its own making: an argument that the kernel does not have.
# says: arguments that its cell's text does not have
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(arguments=dict(x=out, out=out, columns=32, self=1))], 'outputs': out}
