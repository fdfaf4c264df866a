# Sends a recording of its own making: a transpose by a sum for each row.
# says: copies or sums with torch more than 32 times
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [allocate, launch(), dict(allocate)] + [dict(kind='sum', to=view(2, [32], [4], row), source=view(1, [1, 32], [32, 1], row % 4 * 32), dimensions=[0], keepdim=False) for row in range(4)] * 20, 'outputs': view(2, [32, 4], [4, 1])}
