# Sends a recording of its own making: a kernel that is no name.
# says: Expected `str`, got `array` - at `$.steps[1].kernel`
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(kernel=[1])], 'outputs': out}
