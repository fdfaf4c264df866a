# Sends many small tensors whose strides make half a gigabyte of each.
# says: malformed
# after: forge.py

def reply(self, tree):

    far = [{"T": ["uint8", [2], i, None, [(512 << 20) - 2]]} for i in range(4000)]
    frame({"value": far}, *[b"xx"] * 4000)
