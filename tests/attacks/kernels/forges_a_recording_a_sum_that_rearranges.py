# Sends a recording of its own making: a sum of length one that writes a transpose.
# says: rearranges elements with torch
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(), dict(allocate), dict(kind='sum', to=view(2, [32, 4], [4, 1]), source=view(1, [32, 4, 1], [1, 32, 1]), dimensions=[2], keepdim=False)], 'outputs': view(2, [32, 4], [4, 1])}
