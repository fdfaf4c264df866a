# Sends a recording of its own making: a write into the input.
# says: changes its input in place
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(kind='fill', to=view(0, [4, 32], [32, 1]), value=1), launch()], 'outputs': out}
