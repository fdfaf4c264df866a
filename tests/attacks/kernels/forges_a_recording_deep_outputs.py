# Sends a recording of its own making: outputs nested fifty deep.
# says: got `array` - at `$.outputs
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch()], 'outputs': __import__('functools').reduce(lambda inner, _: [inner], range(50), out)}
