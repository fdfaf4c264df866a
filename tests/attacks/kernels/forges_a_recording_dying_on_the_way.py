# Sends a recording of its own making: dying on the way.
# says: process was lost
# other: any
# after: forge_recording.py

recording = lambda: __import__('os')._exit(0)
