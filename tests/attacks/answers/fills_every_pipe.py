# Keeps data in as many pipes as it may open, each made as large as the kernel allows.
# says: held less than the limit | MiB of memory
# sandboxes: bwrap ungrouped
# limits: memory_mb=400

import fcntl, os

held, pipes = 0, []
try:
    while True:
        pipes.append(os.pipe())
        os.set_blocking(pipes[-1][1], False)
        for size in (1 << 20, 64 << 10, 4 << 10):
            try:
                fcntl.fcntl(pipes[-1][1], fcntl.F_SETPIPE_SZ, size)
                break
            except OSError:
                pass
        try:
            while True:
                held += os.write(pipes[-1][1], bytes(64 << 10))
        except BlockingIOError:
            pass
except OSError:
    pass
raise Exception("held less than the limit" if held < 400 << 20 else f"held {held} bytes")
