# Connects to a server of this machine, by port and by abstract name, and to another machine.
# says: Network is unreachable
# sandboxes: bwrap

import socket
for family, address in ((socket.AF_INET, ('127.0.0.1', PORT)), (socket.AF_UNIX, '\0NAME')):
    with socket.socket(family) as s:
        s.settimeout(2)
        assert s.connect_ex(address), 'connected'
with socket.socket() as s:
    s.connect(('192.0.2.1', 80))
