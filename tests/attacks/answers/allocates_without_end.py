# Allocates memory in one process until something stops it.
# says: emory
# limits: memory_mb=600

x = []
while True:
    x.append(bytearray(50 << 20))
