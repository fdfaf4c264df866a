# Sends a recording of its own making: a huge allocation.
# says: allocates 4,294,967,296 MiB
# other: any
# after: forge_recording.py

recording = lambda: {'steps': [dict(allocate, elements=1 << 50), launch()], 'outputs': out}
