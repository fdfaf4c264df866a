# Fills the queues of datagram sockets and closes every sender.
# says: MiB of memory | more than 1,024 sockets | held less than the limit
# sandboxes: bwrap ungrouped
# limits: memory_mb=400

import socket

sent, receivers = 0, []
for number in range(200):
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(f"\0queue-{number}")
    receivers.append(receiver)
    for _ in range(64):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                while True:
                    sent += sender.sendto(bytes(100 << 10), f"\0queue-{number}")
            except BlockingIOError:
                pass
raise Exception("held less than the limit" if sent < 400 << 20 else f"held {sent} bytes")
