# Sends a recording of its own making: a copy between views whose strides descend and whose elements interleave.
# says: rearranges elements with torch
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [dict(allocate, elements=1024), launch(), dict(allocate, elements=1024), dict(kind='copy', to=view(2, [4, 35], [5, 4]), source=view(1, [4, 35], [33, 1]))], 'outputs': view(2, [32, 4], [4, 1])}
