# Sends a recording of its own making: a fill by a text.
# says: got `str` - at `$.steps[1].value`
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, dict(kind='fill', to=out, value='1'), launch()], 'outputs': out}
