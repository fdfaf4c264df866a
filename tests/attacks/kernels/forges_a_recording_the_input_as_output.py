# Sends a recording of its own making: the input as output.
# says: no kernel wrote
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch()], 'outputs': view(0, [4, 32], [32, 1])}
