# Ignores every signal and hangs inside one call of C code.
# says: did not answer within 2 s
# limits: cell_seconds=2 test_seconds=2

import signal
for n in range(1, 65):
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
sum(range(10**12))
