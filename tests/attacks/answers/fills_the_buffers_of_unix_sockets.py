# Keeps data in the buffers of thousands of Unix sockets, where no process is charged for it.
# says: MiB of memory | more than 1,024 sockets
# sandboxes: bwrap ungrouped
# limits: memory_mb=400 cell_seconds=5

import os, socket, time

def fill():
    for _ in range(120):
        ours, theirs = socket.socketpair()
        kept.append((ours, theirs))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
        ours.setblocking(False)
        try:
            while True:
                ours.send(bytes(64 << 10))
        except BlockingIOError:
            pass

kept = []
for _ in range(20):
    if os.fork() == 0:
        fill()
        time.sleep(3600)
time.sleep(3600)
