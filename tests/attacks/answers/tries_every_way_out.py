# Tries some thirty ways out of the sandbox, from mounts to new privileges.
# says: out by []
# sandboxes: bwrap

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
for folder in ("/", "/etc", "/dev", "/home", "/lab", "/lab/threeloops_grader", "/venv", "/usr", "/proc/sys/kernel"):
    attempt(f"a file in {folder}", lambda: writes(f"{folder}/threeloops"))
for path in ("/lab/threeloops_grader/transport/wire.py", "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces"):
    attempt(f"write {path}", lambda: writes(path))
raise Exception(f'out by {out}')
