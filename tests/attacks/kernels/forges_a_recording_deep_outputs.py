# Sends a recording of its own making: outputs nested fifty deep.
# says: cannot be read (what it returns)
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch()], 'outputs': __import__('functools').reduce(lambda inner, _: [inner], range(50), out)}
