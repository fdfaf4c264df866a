# Sends a recording of its own making: a fill by a number of a thousand digits.
# says: an integer of more than 64 bits
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(kind='fill', to=out, value=10 ** 1000), launch()], 'outputs': out}
