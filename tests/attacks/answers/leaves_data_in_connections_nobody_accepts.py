# Sends data over connections that nobody accepts and closes its own end: no process holds a descriptor of them.
# says: MiB of memory | more than 1,024 sockets | held less than the limit
# sandboxes: bwrap ungrouped
# limits: memory_mb=400

import socket

sent, servers = 0, []
for number in range(40):
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"\0waiting-{number}")
    server.listen(4096)
    servers.append(server)
    for _ in range(200):
        with socket.socket(socket.AF_UNIX) as ours:
            ours.setblocking(False)
            try:
                ours.connect(f"\0waiting-{number}")
                while True:
                    sent += ours.send(bytes(64 << 10))
            except BlockingIOError:
                pass
raise Exception("held less than the limit" if sent < 400 << 20 else f"held {sent} bytes")
