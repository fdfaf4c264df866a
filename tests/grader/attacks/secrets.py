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
    ),
    "reads the course": Attack(
        says="found []",
        code="""
            import os
            found = []
            for path in ('ROOT', 'ROOT/solutions/90_toy/90_toy.py', 'ROOT/../gradebook.db', 'COURSE'):
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
            found = [os.path.join(a, f) for a, _, files in os.walk('/') if not a.startswith('/proc') for f in files
                     if f in ('gradebook.db', '90_toy.py', '90_toy.ipynb', 'manifest.py') and '/site-packages/' not in a]
            found = [f for f in found if f.endswith('.db') or 'toy' in f or 'grader' in f]
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
            libc = ctypes.CDLL(None, use_errno=True)
            out = []
            def attempt(name, way):
                try:
                    if way():
                        out.append(name)
                except (OSError, subprocess.SubprocessError):
                    pass
            def writes(path):
                with open(path, 'w') as file:
                    file.write('1')
                return True
            for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000):
                attempt(f'unshare {flag:x}', lambda: libc.unshare(flag) == 0)
            attempt('mount', lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0)
            attempt('umount', lambda: libc.umount2(b'/proc', 2) == 0)
            attempt('chroot', lambda: os.chroot('/tmp') is None)
            attempt('mknod', lambda: os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0)) is None)
            attempt('ptrace', lambda: libc.ptrace(16, 1, 0, 0) == 0)
            attempt('setuid', lambda: os.setuid(0) is None)
            attempt('setgroups', lambda: os.setgroups([0]) is None)
            attempt('nice', lambda: os.nice(-5) is not None)
            attempt('hostname', lambda: libc.sethostname(b'x', 1) == 0)
            attempt('kill the monitor', lambda: os.getppid() and os.kill(os.getppid(), 9) is None)
            attempt('other processes', lambda: set(filter(str.isdecimal, os.listdir('/proc'))) - {'1'})
            attempt('oom', lambda: writes('/proc/self/oom_score_adj') and os.geteuid() != 0 and open('/proc/self/oom_score_adj').read() == '-1000')
            attempt('suid', lambda: subprocess.run(['find', '/usr/bin', '-perm', '-4000', '-exec', '{}', '--help', ';'],
                    capture_output=True, timeout=5) and subprocess.run(['su', '-c', 'id'], capture_output=True, timeout=5).returncode == 0)
            attempt('capabilities', lambda: any(int(line.split()[1], 16) for line in open('/proc/self/status') if line.startswith('Cap')))
            attempt('new privileges', lambda: 'NoNewPrivs:\t1' not in open('/proc/self/status').read())
            for path in ('/x', '/etc/ld.so.preload', '/dev/x', '/home/x', '/lab/x', '/lab/grader/wire.py', '/venv/x', '/usr/x',
                         '/proc/sys/kernel/hostname', '/proc/sys/user/max_user_namespaces', '/proc/sysrq-trigger'):
                attempt(f'write {path}', lambda: writes(path))
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
