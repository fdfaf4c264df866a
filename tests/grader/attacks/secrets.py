"""Answers that look for what they must not see, and for a way out."""

from attacks.attack import BWRAP, Attack

SECRETS = {
    "imports the library's own answer": Attack(
        says="withheld in graded runs",
        code="from threeloops.inner.roofline import ridge_point",
        honest=True,
    ),
    "looks for the withheld module's bytecode": Attack(
        says="found []",
        code="""
            import pathlib, sys
            found = [str(p) for s in sys.path if s for p in pathlib.Path(s, 'threeloops').rglob('*roofline*')
                     if p.suffix == '.pyc' or (p.stem == 'roofline' and 'withheld' not in p.read_text())]
            raise Exception(f'found {found}')
        """,
        sandboxes=BWRAP,
    ),
    "reads the course": Attack(
        says="found []",
        code="""
            import os
            found = []
            source = 'ROOT/solutions/90_toy/90_toy.py'
            for path in ('ROOT', source, 'ROOT/../marks_of_everybody.db', 'COURSE'):
                try:
                    found += [path, os.listdir(path) if os.path.isdir(path) else open(path).read()]
                except OSError:
                    pass
            raise Exception(f'found {found}')
        """,
        sandboxes=BWRAP,
    ),
    "searches every folder": Attack(
        says="found []",
        code="""
            import os
            secret = ('marks_of_everybody.db', '90_toy.py', '90_toy.ipynb', 'toy_course.py')
            found = [f for folder, _, files in os.walk('/') if folder != '/proc' for f in files if f in secret]
            raise Exception(f'found {found}')
        """,
        sandboxes=BWRAP,
    ),
    "searches its own memory for hidden tests": Attack(
        says="found 0 times",
        code=r"""
            import re
            needle = re.compile(b'a med[i]an is n[o]t a m[e]an')
            maps = [re.match(r'(\w+)-(\w+) r', line) for line in open('/proc/self/maps') if '[v' not in line]
            found = 0
            with open('/proc/self/mem', 'rb', 0) as memory:
                for m in filter(None, maps):
                    begin, end = (int(x, 16) for x in m.groups())
                    try:
                        memory.seek(begin)
                        found += len(needle.findall(memory.read(min(end - begin, 64 << 20))))
                    except OSError:
                        pass
            raise Exception(f'found {found} times')
        """,
    ),
    "reads the grader's environment": Attack(
        says="1 process, token seen: False",
        code="""
            import os
            texts = [str(dict(os.environ))]
            for p in os.listdir('/proc'):
                if p.isdecimal():
                    texts.append(open(f'/proc/{p}/environ').read())
            raise Exception(f'{len(texts) - 1} process, token seen: {any("TOKEN" in t for t in texts)}')
        """,
        sandboxes=BWRAP,
    ),
    "opens a socket to outside": Attack(
        says="Network is unreachable",
        code=r"""
            import socket
            for family, address in ((socket.AF_INET, ('127.0.0.1', PORT)), (socket.AF_UNIX, '\0NAME')):
                with socket.socket(family) as s:
                    s.settimeout(2)
                    assert s.connect_ex(address), 'connected'
            with socket.socket() as s:
                s.connect(('192.0.2.1', 80))
        """,
        sandboxes=BWRAP,
    ),
    "tries every way out": Attack(
        says="out by []",
        code=r"""
            import ctypes, os, subprocess

            libc, out = ctypes.CDLL(None), []

            def attempt(name, way):
                try:
                    if way():
                        out.append(name)
                except (OSError, subprocess.SubprocessError):
                    pass

            def runs(*command):
                return subprocess.run(command, capture_output=True, timeout=5).returncode == 0

            def writes(path):
                with open(path, "w") as file:
                    return file.write("1")

            for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000):
                attempt(f"unshare {flag:x}", lambda: libc.unshare(flag) == 0)
            attempt("unshare by command", lambda: runs("unshare", "--user", "true"))
            attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
            attempt("umount", lambda: libc.umount2(b"/proc", 2) == 0)
            attempt("chroot", lambda: os.chroot("/tmp") is None)
            attempt("mknod", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)) is None)
            attempt("ptrace", lambda: libc.ptrace(0, 0, 0, 0) == 0)
            attempt("setuid", lambda: os.setuid(0) is None)
            attempt("setgroups", lambda: os.setgroups([0]) is None)
            attempt("su", lambda: runs("su", "-c", "true"))
            attempt("nice", lambda: os.nice(-5) is not None)
            attempt("hostname", lambda: libc.sethostname(b"x", 1) == 0)
            attempt("a parent to kill", lambda: os.getppid())
            attempt("other processes", lambda: set(filter(str.isdecimal, os.listdir("/proc"))) - {"1"})
            with open("/proc/self/status") as file:
                status = dict(line.split() for line in file if line.startswith(("Cap", "NoNewPrivs")))
            attempt("capabilities", lambda: any(int(status[k], 16) for k in status if k[0] == "C"))
            attempt("new privileges", lambda: status["NoNewPrivs:"] != "1")
            for folder in ("/", "/etc", "/dev", "/home", "/lab", "/lab/grader", "/venv", "/usr", "/proc/sys/kernel"):
                attempt(f"a file in {folder}", lambda: writes(f"{folder}/threeloops"))
            for path in ("/lab/grader/wire.py", "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces"):
                attempt(f"write {path}", lambda: writes(path))
            raise Exception(f'out by {out}')
        """,
        sandboxes=BWRAP,
    ),
    "signals its process group": Attack(
        says="mean of 1 numbers",
        code="""
            import os, signal
            for pid, number in ((0, signal.SIGSTOP), (0, signal.SIGKILL), (-1, signal.SIGKILL)):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        """,
        returns="3.0",
        sandboxes=BWRAP,
    ),
}
