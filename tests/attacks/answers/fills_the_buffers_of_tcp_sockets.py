# Keeps data in the buffers of many TCP connections over loopback, in more than one process.
# says: MiB of memory | more than 1,024 sockets | held less than the limit
# sandboxes: bwrap ungrouped
# limits: memory_mb=400

import os, signal, socket, time

def fill():
    sent, kept = 0, []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        for _ in range(100):
            try:
                ours = socket.create_connection(server.getsockname(), timeout=1)
                theirs, _ = server.accept()
            except OSError:
                break
            kept.append((ours, theirs))
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
            ours.setblocking(False)
            try:
                while True:
                    sent += ours.send(bytes(64 << 10))
            except OSError:
                pass
    os.write(told[1], b"%15d\n" % sent)
    time.sleep(3600)

told = os.pipe()
children = []
for _ in range(8):
    if (child := os.fork()) == 0:
        fill()
    children.append(child)
total = sum(int(os.read(told[0], 16)) for _ in range(8))
for child in children:  # the cell ends with what it held, so that whoever looks late finds nothing in the next one
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
raise Exception("held less than the limit" if total < 400 << 20 else f"held {total} bytes")
