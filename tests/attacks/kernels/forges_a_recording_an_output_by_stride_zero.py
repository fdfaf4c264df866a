# Sends a recording of its own making: an output of a quadrillion elements that are one.
# says: elements: at most
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch()], 'outputs': view(1, [1 << 25, 1 << 25], [0, 0])}
