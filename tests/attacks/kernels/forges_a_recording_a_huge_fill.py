# Sends a recording of its own making: a fill by a number of a thousand digits.
# says: cannot be read (a number)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(do='fill', to=out, value=10 ** 1000), launch()], 'outputs': out}
