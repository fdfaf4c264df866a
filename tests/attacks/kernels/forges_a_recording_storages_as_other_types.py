# Sends a recording of its own making: the input as a tensor of addresses.
# says: Expected dtype ['fp32', 'fp64'] but got int64
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(arguments=dict(x=dict(view(0, [4, 8], [8, 1]), dtype='int64'), out=out, columns=8))], 'outputs': out}
