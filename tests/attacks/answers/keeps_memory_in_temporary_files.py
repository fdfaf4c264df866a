# Keeps data in temporary files of every folder at once, and maps them.
# says: No space left | MiB of memory
# sandboxes: bwrap ungrouped
# limits: memory_mb=400 disk_mb=16

import mmap

kept = []
for folder in ("/tmp", "/dev/shm", "."):
    for number in range(100):
        file = open(f"{folder}/{number}", "w+b")
        file.write(bytes(1 << 20))
        file.flush()
        kept.append(mmap.mmap(file.fileno(), 1 << 20))
