# Sends a recording of its own making: nonsense.
# says: a form that cannot be read
# other: any
# after: forge_recording.py

recording = lambda: [1, 2, 3]
