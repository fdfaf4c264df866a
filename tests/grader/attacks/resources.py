"""Answers that take what the machine has: output, processes, memory, disk."""

from dataclasses import replace

from attacks.attack import BWRAP, QUICK, SHORT, Attack

RESOURCES = {
    "prints 250 MB": Attack(
        says="more than one file may hold",
        code="print('x' * 250_000_000)",
        honest=True,
    ),
    "prints 250 MB from another process": Attack(
        code="""
            import subprocess
            subprocess.run('yes | head -c 250000000', shell=True)
        """,
        honest=True,
        earns=40.0,
    ),
    "prints 20 MB in a call": Attack(
        says="mean of 1 numbers",
        returns="print('x' * 20_000_000) or 3.0",
    ),
    "displays 200 MB": Attack(
        code="""
            from IPython.display import display
            for _ in range(20):
                display('x' * 10**7)
        """,
        honest=True,
        earns=40.0,
    ),
    "forks until it may not": Attack(
        says="mean",
        code="""
            import os, time
            for _ in range(200):
                if os.fork() == 0:
                    time.sleep(3600)
        """,
        honest=True,
    ),
    "is a fork bomb": Attack(
        says="the submission's process was lost",
        code="""
            import os
            for _ in range(9):
                try:
                    os.fork()
                except OSError:
                    pass
            while True:
                pass
        """,
        limits=SHORT,
    ),
    "leaves a daemon behind": Attack(
        code="""
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(3600)
                os._exit(0)
            os.wait()
        """,
        honest=True,
        earns=40.0,
    ),
    "leaves a daemon behind and dies": Attack(
        says="process was lost: it ended",
        code="""
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(3600)
                os._exit(0)
            os.wait()
            os._exit(0)
        """,
    ),
    "starts threads until it may not": Attack(
        says="mean",
        code="""
            import threading, time
            for _ in range(5000):
                threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        """,
        sandboxes=BWRAP,
    ),
    "allocates without end": Attack(
        says="emory",
        code="""
            x = []
            while True:
                x.append(bytearray(50 << 20))
        """,
        limits=replace(QUICK, memory_mb=600),
    ),
    "allocates without end in many processes": Attack(
        says="MiB of memory",
        code="""
            import os, time
            hold = []
            for _ in range(8):
                if os.fork() == 0:
                    while True:
                        hold.append(bytearray(b'x' * (10 << 20)))
                        time.sleep(0.01)
            time.sleep(3600)
        """,
        limits=replace(QUICK, memory_mb=600),
    ),
    "hides memory where no process is charged for it": Attack(
        says="hidden in []",
        code="""
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
        """,
        sandboxes=BWRAP,
    ),
    "fills every folder it may write to": Attack(
        code="""
            full = 0
            for folder in ('.', '/tmp', '/dev/shm'):
                try:
                    for n in range(10_000):
                        open(f'{folder}/{n}', 'wb').write(bytes(1 << 20))
                except OSError as error:
                    full += error.errno == 28
            assert full == 3, full
        """,
        honest=True,
        earns=40.0,
        sandboxes=BWRAP,
    ),
    "makes files without end": Attack(
        says="No space left on device",
        code="""
            for n in range(100_000):
                open(f'/tmp/{n}', 'w').close()
        """,
        sandboxes=BWRAP,
    ),
    "opens files without end": Attack(
        says="Too many open files",
        code="""
            f = []
            while True:
                f.append(open('/dev/null'))
        """,
    ),
    "raises its own limits": Attack(
        says="ValueError: not allowed to raise maximum limit",
        code="""
            import resource
            for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
                resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """,
        sandboxes=BWRAP,
    ),
}
