# Allocates memory in one process until something stops it.
# says: emory
# limits: memory_mb=600
# sandboxes: bwrap ungrouped none

x = []
while True:
    x.append(bytearray(50 << 20))
