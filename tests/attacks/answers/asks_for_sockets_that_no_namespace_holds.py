# Opens sockets of families that a network namespace does not hold in, such as the one to the machine below.
# says: opened []
# sandboxes: bwrap ungrouped

import socket

opened = []
for family in range(64):
    if family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                opened.append((family, socket.socket(family, kind)))
            except OSError:
                pass
raise Exception(f"opened {opened}")
