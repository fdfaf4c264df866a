# Sends a recording of its own making: a fill by a text.
# says: cannot be read (a number)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(do='fill', to=out, value='1'), launch()], 'outputs': out}
