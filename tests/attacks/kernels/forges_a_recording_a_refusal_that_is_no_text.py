# Sends a recording of its own making: a refusal that is no text.
# says: replay: softmax [1, 1
# other: any
# after: forge_recording.py

recording = lambda: {'refused': [1] * 10}
