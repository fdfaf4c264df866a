# Looks for memory that belongs to no process: anonymous files, System V segments, /dev/zero.
# says: hidden in []
# sandboxes: bwrap ungrouped

import ctypes, mmap, os
libc, hidden = ctypes.CDLL(None), []
for way in (lambda: os.memfd_create('x'), lambda: mmap.mmap(-1, 1 << 20),
            lambda: mmap.mmap(open('/dev/zero', 'r+b').fileno(), 1 << 20)):
    try:
        hidden.append(way())
    except OSError:
        pass
if libc.shmget(0, 1 << 20, 0o1600) >= 0 or libc.msgget(0, 0o1600) >= 0:
    hidden.append('System V')
raise Exception(f'hidden in {hidden}')
