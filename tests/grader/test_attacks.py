"""Submissions that mean harm: each earns what an honest answer would have earned, and nobody else notices.

Every attack is the answer to exercise `mean` (40 points) of an otherwise honest submission. Afterwards an honest
submission is graded by the same warm processes; at the end of the file no process and no folder may be left.
"""

import json
import os
import resource
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import grader
import pytest
from grader import records
from grader.engine import Report
from grader.grade import Options, execute, grade_class
from grader.labs import Limits
from grading import QUICK, SANDBOXES, fresh_course, grade, needs, points, said, submission

BOTH, BWRAP = SANDBOXES, ("bwrap",)
SHORT = replace(QUICK, cell_seconds=2, test_seconds=2)
HONEST = {"mean": 40.0, "rescale": 60.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "gradebook.db").write_text("SECRET marks of everybody")
    os.environ["THREELOOPS_TOKEN"] = "TOKEN"
    try:
        with fresh_course(folder) as lab:
            yield lab
    finally:
        del os.environ["THREELOOPS_TOKEN"]


@dataclass(frozen=True)
class Attack:
    """`answer` replaces the solution of `mean`; `says` must stand in the record; `other` is what `rescale` earns, None where
    the attack may or may not ruin it."""

    answer: str
    says: str = ""
    earns: float = 0.0
    other: float | None = 60.0
    before: str = ""
    limits: Limits = QUICK
    sandboxes: tuple[str, ...] = BOTH


def returning(expression: str, definitions: str = "") -> str:
    """An answer that returns one thing, whatever it is asked."""
    return f"{definitions}\ndef mean(values):\n    return {expression}\n"


RIGHT = """
def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
"""

FORGE = """
import gc, json, os, socket, struct
import grader.wall.student as side
import torch
usual, raw = side.Server.answer, socket.socket(fileno=os.dup(200))
def frame(tree, *buffers):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    raw.sendall(struct.pack("<IIQ", len(text), len(buffers), sum(map(len, buffers))) + sizes + text + b"".join(buffers))
def mean(values):
    return 0.0
def forged(self, tree, buffers):
    if tree["op"] == "call":
        side.Server.answer = usual
        reply(self, tree)
    else:
        usual(self, tree, buffers)
side.Server.answer = forged
"""


def forging(reply: str) -> str:
    """The student's end, patched to answer the first call of a test with `reply`, past its own codec."""
    return FORGE + f"def reply(self, tree):\n    {reply}\n"


ENDINGS = {
    "raises": Attack("raise ValueError('no answer today')", "ValueError: no answer today"),
    "raises in the call": Attack(returning("1 // 0"), "ZeroDivisionError"),
    "exits": Attack("import sys\nsys.exit(0)", "SystemExit"),
    "exits in the call": Attack(returning("sys.exit(0)", "import sys"), "SystemExit"),
    "ends its own process": Attack("import os\nos._exit(0)", "process was lost: it ended"),
    "ends its own process in the call": Attack(returning("os._exit(0)", "import os"), "process was lost: it ended"),
    "kills its own process": Attack(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nos.abort()", "process was lost: it ended"
    ),
    "kills its own kernel": Attack("get_ipython().kernel.do_shutdown(False)", "kernel"),
    "asks the kernel to stop": Attack("exit()\nquit()\n" + returning("3.0"), "mean"),
    "closes the channel": Attack("import os\nos.close(200)", "process was lost: it ended"),
    "loops for ever and swallows interrupts": Attack(
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        "did not answer within 2 s",
        limits=SHORT,
    ),
    "loops for ever in the call": Attack(
        returning("spin()", "def spin():\n    while True:\n        pass"), "did not answer within 2 s", limits=SHORT
    ),
    "waits for input": Attack(returning("float(input('the mean? '))"), "Error"),
    "hangs in C, deaf to signals": Attack(
        "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsum(range(10**12))",
        "did not answer within 2 s",
        limits=SHORT,
    ),
    "raises what is no Exception": Attack(
        returning("fail()", "class Bad(BaseException): pass\ndef fail():\n    raise Bad('caught?')"), "caught?"
    ),
    "raises an exception without a text": Attack(
        returning(
            "fail()",
            "class Mute(ValueError):\n    def __str__(self):\n        raise SystemExit\n"
            "def fail():\n    raise Mute('values')",
        ),
        "without a readable message",
    ),
    "raises an exception with an endless text": Attack(
        returning("fail()", "def fail():\n    raise ValueError('values' * 10**7)"), "values"
    ),
    "recurses for ever": Attack(returning("mean(values)"), "RecursionError"),
    "has no syntax": Attack("def mean(values:\n    return 3.0", "SyntaxError"),
    "is 5 MiB of text": Attack("# " + "x" * (5 << 20) + RIGHT, "too long to execute"),
    "is half a character": Attack("x = '\ud800'\n" + returning("3.0"), "mean of 1 numbers"),
}


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
os.wait()
"""

RESOURCES = {
    "prints 250 MB": Attack("print('x' * 250_000_000)" + RIGHT, "more than one file may hold"),
    "prints 250 MB from another process": Attack(
        "import subprocess\nsubprocess.run('yes | head -c 250000000', shell=True)" + RIGHT, earns=40.0
    ),
    "prints 20 MB in a call": Attack(returning("print('x' * 20_000_000) or 3.0"), "mean of 1 numbers"),
    "displays 200 MB": Attack(
        "from IPython.display import display\nfor _ in range(20):\n    display('x' * 10**7)" + RIGHT, earns=40.0
    ),
    "forks until it may not": Attack(
        "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(3600)" + RIGHT, "mean"
    ),
    "is a fork bomb": Attack(
        "import os\nfor _ in range(9):\n    try:\n        os.fork()\n    except OSError:\n        pass\nwhile True:\n    pass",
        "the submission's process was lost",
        limits=SHORT,
    ),
    "leaves a daemon behind": Attack(DAEMON + RIGHT, earns=40.0),
    "leaves a daemon behind and dies": Attack(DAEMON + "os._exit(0)", "process was lost: it ended"),
    "starts threads until it may not": Attack(
        "import threading, time\nfor _ in range(5000):\n"
        "    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        "mean",
        sandboxes=BWRAP,
    ),
    "allocates without end": Attack("x = []\nwhile True:\n    x.append(bytearray(50 << 20))", "emory"),
    "allocates without end in many processes": Attack(
        "import os, time\nhold = []\nfor _ in range(8):\n    if os.fork() == 0:\n        while True:\n"
        "            hold.append(bytearray(b'x' * (10 << 20)))\n            time.sleep(0.01)\ntime.sleep(3600)",
        "MiB of memory",
    ),
    "hides memory where no process is charged for it": Attack(
        "import ctypes, mmap, os\nlibc, hidden = ctypes.CDLL(None), []\n"
        "for way in (lambda: os.memfd_create('x'), lambda: mmap.mmap(-1, 1 << 20),\n"
        "            lambda: mmap.mmap(open('/dev/zero', 'r+b').fileno(), 1 << 20)):\n"
        "    try:\n        hidden.append(way())\n    except OSError:\n        pass\n"
        "if libc.shmget(0, 1 << 20, 0o1600) >= 0 or libc.msgget(0, 0o1600) >= 0:\n    hidden.append('System V')\n"
        "raise Exception(f'hidden in {hidden}')",
        "hidden in []",
        sandboxes=BWRAP,
    ),
    "fills every folder it may write to": Attack(
        "full = 0\nfor folder in ('.', '/tmp', '/dev/shm'):\n    try:\n        for n in range(10_000):\n"
        "            open(f'{folder}/{n}', 'wb').write(bytes(1 << 20))\n    except OSError as error:\n"
        "        full += error.errno == 28\nassert full == 3, full" + RIGHT,
        earns=40.0,
        sandboxes=BWRAP,
    ),
    "makes files without end": Attack(
        "for n in range(100_000):\n    open(f'/tmp/{n}', 'w').close()", "No space left on device", sandboxes=BWRAP
    ),
    "opens files without end": Attack("f = []\nwhile True:\n    f.append(open('/dev/null'))", "Too many open files"),
    "raises its own limits": Attack(
        "import resource\nfor kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):\n"
        "    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "ValueError: not allowed to raise maximum limit",
        sandboxes=BWRAP,
    ),
}

SECRETS = {
    "imports the library's own answer": Attack(
        "from threeloops.inner.roofline import ridge_point" + RIGHT, "withheld in graded runs"
    ),
    "looks for the withheld module's bytecode": Attack(
        "import pathlib, sys\nfound = [str(p) for s in sys.path if s for p in pathlib.Path(s, 'threeloops').rglob('*roofline*')\n"
        "         if p.suffix == '.pyc' or (p.stem == 'roofline' and 'withheld' not in p.read_text())]\nraise Exception(f'found {found}')",
        "found []",
    ),
    "reads the course": Attack(
        "import os\nfound = []\nfor path in ('ROOT', 'ROOT/solutions/90_toy/90_toy.py', 'ROOT/../gradebook.db', 'COURSE'):\n"
        "    try:\n        found += [path, os.listdir(path) if os.path.isdir(path) else open(path).read()]\n"
        "    except OSError:\n        pass\nraise Exception(f'found {found}')",
        "found []",
        sandboxes=BWRAP,
    ),
    "searches every folder": Attack(
        "import os\nfound = [os.path.join(a, f) for a, _, files in os.walk('/') if not a.startswith('/proc') for f in files\n"
        "         if f in ('gradebook.db', '90_toy.py', '90_toy.ipynb', 'manifest.py') and '/site-packages/' not in a]\n"
        "found = [f for f in found if f.endswith('.db') or 'toy' in f or 'grader' in f]\nraise Exception(f'found {found}')",
        "found []",
        sandboxes=BWRAP,
    ),
    "searches its own memory for hidden tests": Attack(
        "import re\nneedle = re.compile(b'a med[i]an is n[o]t a m[e]an')\n"
        "maps = [re.match(r'(\\w+)-(\\w+) r', line) for line in open('/proc/self/maps') if '[v' not in line]\n"
        "found = 0\nwith open('/proc/self/mem', 'rb', 0) as memory:\n    for m in filter(None, maps):\n"
        "        begin, end = (int(x, 16) for x in m.groups())\n        try:\n            memory.seek(begin)\n"
        "            found += len(needle.findall(memory.read(min(end - begin, 64 << 20))))\n"
        "        except OSError:\n            pass\nraise Exception(f'found {found} times')",
        "found 0 times",
    ),
    "reads the grader's environment": Attack(
        "import os\ntexts = [str(dict(os.environ))]\nfor p in os.listdir('/proc'):\n    if p.isdecimal():\n"
        "        texts.append(open(f'/proc/{p}/environ').read())\n"
        "raise Exception(f'{len(texts) - 1} process, token seen: {any(\"TOKEN\" in t for t in texts)}')",
        "1 process, token seen: False",
        sandboxes=BWRAP,
    ),
    "opens a socket to outside": Attack(
        "import socket\nfor family, address in ((socket.AF_INET, ('127.0.0.1', PORT)), (socket.AF_UNIX, '\\0NAME')):\n"
        "    with socket.socket(family) as s:\n        s.settimeout(2)\n        assert s.connect_ex(address), 'connected'\n"
        "with socket.socket() as s:\n    s.connect(('192.0.2.1', 80))",
        "Network is unreachable",
        sandboxes=BWRAP,
    ),
    "tries every way out": Attack(
        """
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
attempt('new privileges', lambda: 'NoNewPrivs:\\t1' not in open('/proc/self/status').read())
for path in ('/x', '/etc/ld.so.preload', '/dev/x', '/home/x', '/lab/x', '/lab/grader/wire.py', '/venv/x', '/usr/x',
             '/proc/sys/kernel/hostname', '/proc/sys/user/max_user_namespaces', '/proc/sysrq-trigger'):
    attempt(f'write {path}', lambda: writes(path))
raise Exception(f'out by {out}')
""",
        "out by []",
        sandboxes=BWRAP,
    ),
    "signals its process group": Attack(
        "import os, signal\nfor pid, number in ((0, signal.SIGSTOP), (0, signal.SIGKILL), (-1, signal.SIGKILL)):\n"
        "    try:\n        os.kill(pid, number)\n    except ProcessLookupError:\n        pass\n" + returning("3.0"),
        "mean of 1 numbers",
        sandboxes=BWRAP,
    ),
}

LIES = {
    "equals everything": Attack(
        returning(
            "Yes()",
            "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
            "    def __float__(self): return 3.0\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\n"
            "    def __le__(self, other): return True\n    __ge__ = __lt__ = __gt__ = __le__\n"
            "    def __abs__(self): return 0.0\n    def __bool__(self): return True\n    def __hash__(self): return 0\n"
            "    def __array__(self, *a, **k):\n        import numpy\n        return numpy.float64(3.0)\n"
            "    shape, dtype, ndim = (), 'float64', 0\n    def item(self): return 3.0\n    __class__ = float",
        ),
        "plain data",
    ),
    "is a float that equals everything": Attack(
        returning(
            "Yes(3.0)",
            "class Yes(float):\n    __eq__ = __le__ = lambda self, other: True\n    __hash__ = float.__hash__",
        ),
        "plain data",
    ),
    "is an int that equals everything": Attack(
        returning(
            "Yes(3)", "class Yes(int):\n    __eq__ = __le__ = lambda self, other: True\n    __hash__ = int.__hash__"
        ),
        "plain data",
    ),
    "is a text that equals everything": Attack(
        returning("Yes('3.0')", "class Yes(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__"),
        "plain data",
    ),
    "is a tensor with operators of its own": Attack(
        returning(
            "torch.tensor(9.0, dtype=torch.float64).as_subclass(Yes)",
            "import torch\nclass Yes(torch.Tensor):\n    @classmethod\n"
            "    def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
            "        with torch._C.DisableTorchFunctionSubclass():\n            return function(*args, **(kwargs or {}))\n"
            "    __eq__ = __le__ = lambda self, other: True",
        ),
        "the sum was not divided by the count",
    ),
    "is an array with operators of its own": Attack(
        returning(
            "np.float64(9.0).reshape(()).view(Yes)",
            "class Yes(np.ndarray):\n    __eq__ = __le__ = __sub__ = __rsub__ = lambda self, other: np.zeros(())\n"
            "    def __array_ufunc__(self, *a, **k): return np.zeros(())",
        ),
        "the sum was not divided by the count",
    ),
    "is masked": Attack(returning("np.ma.masked_array([3.0], [True])[0]"), "mean of the samples"),
    "is not a number": Attack(returning("float('nan')"), "nan"),
    "is infinite": Attack(returning("float('inf')"), "inf"),
    "is a truth": Attack(returning("True"), "mean of the samples"),
    "is complex": Attack(returning("3 + 0j"), "a complex"),
    "is nothing": Attack(returning("None"), "None"),
    "is a huge integer": Attack(returning("10 ** 5000"), "too large to cross"),
    "is a rather large integer": Attack(returning("10 ** 4000"), "too large to convert"),
    "holds itself": Attack(returning("x", "x = []\nx.append(x)"), "deep cannot cross the wall"),
    "is nested 100,000 deep": Attack(
        returning("x", "x = 3.0\nfor _ in range(100_000):\n    x = [x]"), "deep cannot cross the wall"
    ),
    "is 200,000 objects": Attack(
        returning("[object() for _ in range(200_000)]"), "too large to cross", limits=replace(QUICK, test_seconds=20)
    ),
    "is 50,000 objects": Attack(returning("[object() for _ in range(50_000)]"), "plain data"),
    "is a range of a quintillion": Attack(returning("range(10 ** 18)"), "range"),
    "is 600 MiB": Attack(
        returning("np.zeros(75 << 20)"), "too large to cross the wall", limits=replace(QUICK, memory_mb=3000)
    ),
    "is an endless generator": Attack(returning("it.count()", "import itertools as it"), "plain data"),
    "is an array of objects": Attack(returning("np.array([3.0], dtype=object)[0:1]"), "plain data"),
    "is a tensor without data": Attack(returning("torch.empty((), device='meta')", "import torch"), "meta"),
    "is a sparse tensor": Attack(returning("torch.eye(3).to_sparse()", "import torch"), "plain data"),
    "runs code where it is unpickled": Attack(
        returning(
            "Gadget()",
            "import os\nclass Gadget:\n    def __reduce__(self):\n        return os._exit, (0,)\n"
            "    __reduce_ex__ = lambda self, protocol: self.__reduce__()",
        ),
        "plain data",
    ),
    "is a class": Attack(returning("float"), "plain data"),
    "is the argument, changed": Attack(
        "def mean(values):\n    values.clear()\n    values.append(3.0)\n    return values", "mean of the samples"
    ),
    "empties the argument for the next check": Attack(
        RIGHT.replace("return sum", "total = list(values)\n    values.clear()\n    values = total\n    return sum"),
        earns=40.0,
    ),
}

PATCHES = {
    "patches the checks": Attack(
        "import sys, threeloops.lab\nc, d = (sys.modules[f'threeloops.lab.{m}'] for m in ('check', 'compare'))\n"
        "c.Check.close = c.Check.raises = c.Check._fail = lambda *a, **k: None\nd.compare = c.compare = lambda *a, **k: None\n"
        "threeloops.lab.check = check = None\n" + returning("3.0"),
        "mean of 1 numbers",
    ),
    "patches builtins and numpy": Attack(
        "import builtins\nbuiltins.abs = builtins.sum = lambda *a, **k: 3.0\nbuiltins.round = None\n"
        "np.mean = np.abs = lambda *a, **k: 3.0\nnp.random.default_rng = None\n" + returning("3.0"),
        "mean",
        other=None,
    ),
    "breaks the builtins": Attack("import builtins\nbuiltins.isinstance = lambda *a: True", "process was lost"),
    "leaves its own setup behind": Attack(
        RIGHT, earns=40.0, before="SAMPLES = [3.0]\nclass np: pass\ncheck = mean = print = None"
    ),
    "redefines what setup defined": Attack("SAMPLES = [3.0]\ncheck = None\n" + returning("3.0"), "mean of 1 numbers"),
    "prints a result": Attack(
        "print('40.0')\nprint('mean_test: 40/40', '<script>alert(1)</script>')\n"
        'print(\'{"output_type": "execute_result", "data": {"text/plain": "40.0"}}\')\n40.0\n'
        + returning("print('40.0') or 3.0"),
        "mean of 1 numbers",
    ),
    "writes a result to every descriptor": Attack(
        "import os\nfor fd in range(4096):\n    try:\n        os.set_blocking(fd, False)\n"
        '        os.write(fd, b\'{"ok": true, "value": 40.0}\')\n    except OSError:\n        pass' + RIGHT,
        "process was lost",
    ),
    "catches the test in the shell": Attack(
        "shell = get_ipython()\nshell.run_cell = lambda *a, **k: None\nshell.user_ns['__builtins__'] = {}\n"
        + returning("3.0"),
        "mean",
        other=0.0,
    ),
    "looks at its caller": Attack(
        "import inspect\ndef mean(values):\n    frames = inspect.stack()\n    for f in frames:\n"
        "        if 'expected' in f.frame.f_locals: return f.frame.f_locals['expected']\n    return 3.0",
        "mean of 1 numbers",
    ),
    "tells graded runs apart": Attack(
        "import os\nif os.environ.get('THREELOOPS_GRADED'):\n    print('hello grader')" + RIGHT, earns=40.0
    ),
    "uses magics": Attack("%%bash\nexit 3", "mean"),
    "writes its answer by magic": Attack("%%writefile /tmp/threeloops.py\nraise SystemExit", "mean", sandboxes=BWRAP),
    "hides the answer in a magic": Attack("%%time" + RIGHT, earns=40.0),
    "awaits at top level": Attack("import asyncio\nawait asyncio.sleep(0)" + RIGHT, earns=40.0),
    "is a coroutine": Attack("async def mean(values):\n    return 3.0", "plain data"),
    "shadows library modules on disk": Attack(
        "import pathlib, sys\npathlib.Path('torch.py').write_text('raise SystemExit')\nsys.path.insert(0, '.')" + RIGHT,
        earns=40.0,
    ),
    "schedules a change of the other answer": Attack(
        "import sys, threading\ndef later():\n    while True:\n        vars(sys.modules['__main__'])['rescale'] = lambda values, top: values\n"
        "threading.Thread(target=later, daemon=True).start()" + RIGHT,
        earns=40.0,
        other=None,
    ),
    "stays after exit": Attack(
        "import atexit, os\natexit.register(os.fork)\nos.register_at_fork(after_in_child=os.fork)" + RIGHT, earns=40.0
    ),
}

FORGERIES = {
    "answers what it likes": Attack(forging("frame({'value': 3.0})"), "mean of 1 numbers"),
    "answers with no frame": Attack(
        forging("raw.sendall(b'\\xff' * 100)"), "it sent more than may cross the wall", other=0.0
    ),
    "answers with no JSON": Attack(forging("frame(b'{\"value\": ')"), "it broke the protocol", other=0.0),
    "answers with a list": Attack(forging("frame(b'[3.0]')"), "it broke the protocol", other=0.0),
    "answers with brackets alone": Attack(forging("frame(b'[' * (4 << 20))"), "it broke the protocol", other=0.0),
    "answers half a frame": Attack(
        forging("raw.sendall(struct.pack('<IIQ', 100, 0, 0)) or os._exit(0)"), "process was lost: it ended", other=0.0
    ),
    "promises 512 MiB and never sends them": Attack(
        forging("raw.sendall(struct.pack('<IIQQ', 12, 1, 512 << 20, 512 << 20) + b'{\"value\": 0}')"),
        "did not answer within 2 s",
        limits=SHORT,
        other=0.0,
    ),
    "drips": Attack(
        forging("raw.sendall(struct.pack('<IIQQ', 2, 1, 1 << 28, 1 << 28) + b'{}')\n    while True: raw.send(b'x')"),
        "did not answer within 2 s",
        limits=SHORT,
        other=0.0,
    ),
    "answers by callbacks that nobody gave away": Attack(
        forging("frame({'callback': 0, 'value': [[], {}]})"), "no test gave away"
    ),
    "answers by floods of text": Attack(
        forging("frame({'value': 0.0, 'printed': 'x' * (4 << 20 - 1 >> 1)})"), "mean of the samples"
    ),
    "forges a bool that is 2": Attack(
        forging("frame({'value': {'a': ['bool', [], 0]}}, b'\\x02')"), "neither true nor false"
    ),
    "forges one buffer for a million values": Attack(
        forging("frame({'value': [{'b': 0}] * 200_000}, bytes(64 << 20))"), "no such buffer"
    ),
    "forges a stride of half a gigabyte, often": Attack(
        forging(
            "frame({'value': [{'T': ['uint8', [2], i, None, [(512 << 20) - 2]]} for i in range(4000)]}, *[b'xx'] * 4000)"
        ),
        "malformed",
    ),
    "forges a stride that reaches far": Attack(
        forging("frame({'value': {'T': ['uint8', [2], 0, None, [1 << 40]]}}, b'xx')"), "stride too large"
    ),
    "forges an unknown class": Attack(
        forging("frame({'value': {'r': ['__main__', 'Path', [['x', 1]]]}})"), "unknown class"
    ),
    "forges a library object": Attack(
        forging("frame({'value': {'r': ['threeloops.lab.check', 'Check', []]}})"), "unknown class"
    ),
    "forges keys that collide": Attack(
        forging("frame({'value': {'d': [[i * (2**61 - 1), 0] for i in range(60_000)]}})"),
        "did not end within 2 s",
        other=0.0,
        limits=replace(SHORT, notebook_seconds=6),
        sandboxes=BWRAP,
    ),
    "forges a handle that is no number": Attack(
        forging("frame({'value': {'h': [1 << 60, 'object', 'x']}})"), "bad handle"
    ),
    "forges an exception of the wall": Attack(
        forging(
            "frame({'error': {'classes': ['grader.link.LinkDead', 'builtins.BaseException', 'builtins.Exception'], 'message': 'x'}})"
        ),
        "LinkDead: x",
    ),
    "forges an exception with a deep text": Attack(
        forging("frame(b'{\"error\": {\"classes\": [' + b'[' * 500 + b']' * 500 + b'], \"message\": 1}}')"), "error: 1"
    ),
    "forges a terminal's orders": Attack(
        forging(
            "frame({'error': {'classes': ['builtins.ValueError'], 'message': '\\x1b]0;owned\\x07\\x1b[2J\\ud800'}})"
        ),
        "]0;owned[2J?",
    ),
    "races its own answers": Attack(
        FORGE + "def reply(self, tree): usual(self, tree, [])\nimport threading\ndef flood():\n    while True:\n"
        "        frame({'value': 3.0, 'printed': '', 'ok': True})\n[threading.Thread(target=flood, daemon=True).start() for _ in range(4)]",
        "mean",
        other=None,
    ),
}

ALL = ENDINGS | RESOURCES | SECRETS | LIES | PATCHES | FORGERIES


@pytest.mark.parametrize(("name", "sandbox"), [(name, s) for name, attack in ALL.items() for s in attack.sandboxes])
def test_an_attack_earns_what_an_honest_answer_would(lab, outside, name, sandbox):
    needs(sandbox)
    attack, words = ALL[name], {"ROOT": lab.root, "COURSE": Path(grader.__file__).parent, **outside}
    answer = attack.answer
    for word, meaning in words.items():
        answer = answer.replace(word, str(meaning))
    record = grade(lab, submission(lab, attack.before, mean=answer), sandbox, attack.limits)
    earned = points(record)
    assert earned["mean"] == attack.earns, said(record)
    assert attack.other in (earned["rescale"], None), said(record)
    assert attack.says in said(record)
    assert record.status == "graded"
    honest = grade(lab, submission(lab), sandbox)
    assert points(honest) == HONEST, said(honest)
    assert honest.notes == []


@pytest.fixture(scope="module")
def outside():
    """Two sockets of this machine that listen: a port, and a name in the abstract namespace."""
    name = f"threeloops-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        yield {"PORT": server.getsockname()[1], "NAME": name}


@pytest.fixture
def hand_in(lab, tmp_path):
    """Write one student's notebook into a folder of submissions."""

    def write(student, content):
        path = tmp_path / "submitted" / student / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def cells(lab, **changes):
    """The reference as plain JSON, each cell updated by `changes`."""
    return {**lab.master(), "cells": [{**cell, **changes} for cell in lab.master().cells]}


def no_notebooks(lab):
    deep = b'{"cells": [], "metadata": ' + b'{"x": ' * 400 + b"1" + b"}" * 401
    return {
        "not_json": (b"%PDF-1.7", "not JSON"),
        "cut_off": (json.dumps(lab.master()).encode()[:-100], "not JSON"),
        "nothing": (b" \n", "empty"),
        "no_cells": ({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, "empty"),
        "a_list": (b"[1, 2]", "a JSON list"),
        "a_number": (b"1e400", "a JSON float"),
        "old": ({"worksheets": [{"cells": []}], "nbformat": 3}, "not a version 4 notebook"),
        "brackets": (b"[" * 1_000_000, "not JSON"),
        "deep": (deep, "empty"),
        "big": (b" " * (33 << 20), "at most 32 are read"),
        "digits": (b'{"cells": ' + b"9" * 10_000 + b"}", "not JSON"),
        "many": ({"cells": [{"cell_type": "code", "source": "1"}] * 1001}, "at most 1,000 are read"),
        "other_lab": (
            {"metadata": {"threeloops": {"lab": "01_roofline"}}, "cells": [{"cell_type": "code", "source": "1"}]},
            "the notebook of lab '01_roofline'",
        ),
        "odd_cells": ({"cells": [1, None, "x", [], {}], "metadata": []}, "no answer cell"),
        "odd_fields": (cells(lab, metadata=[], id=7, source={"x": 1}, outputs="no"), "no answer cell"),
    }


@pytest.mark.parametrize("sandbox", ("bwrap",))
def test_what_is_no_submission_fails_alone(lab, hand_in, tmp_path, sandbox):
    """One record each with its reason; the others are graded."""
    needs(sandbox)
    reasons = {}
    for student, (content, reason) in no_notebooks(lab).items():
        hand_in(student, content)
        reasons[student] = reason
    folder = tmp_path / "submitted"
    target = hand_in("honest", lab.master())
    links = {"linked_file": target, "linked_lab": target.parent, "linked_student": target.parent.parent}
    (folder / "linked_file" / lab.slug).mkdir(parents=True)
    (folder / "linked_lab").mkdir()
    (folder / "linked_file" / lab.slug / f"{lab.slug}.ipynb").symlink_to(links["linked_file"])
    (folder / "linked_lab" / lab.slug).symlink_to(links["linked_lab"])
    (folder / "linked_student").symlink_to(links["linked_student"])
    hand_in("a_folder", b"").unlink()
    (folder / "a_folder" / lab.slug / f"{lab.slug}.ipynb").mkdir()
    hand_in("a_pipe", b"").unlink()
    os.mkfifo(folder / "a_pipe" / lab.slug / f"{lab.slug}.ipynb")
    hand_in("other_name", b"{}").rename(folder / "other_name" / lab.slug / "mine.ipynb")
    names = ["x..y", "x..", "=1+1", "$(id)", "a\nb", "\x1b[2J", "\udcff\udcfe", "x" * 101]
    for name in names:
        hand_in(name, lab.master())
    reasons |= dict.fromkeys(links, "symbolic link") | dict.fromkeys(names, "is no student's")
    reasons |= dict.fromkeys(("a_folder", "a_pipe"), "no file") | {"other_name": "mine.ipynb"}

    report = grade_class(folder, lab, Options(sandbox=sandbox, limits=QUICK))

    found = {r.student: r for r in report.records}
    assert found.pop("honest").score == 100.0
    assert {s for s, r in found.items() if r.score or r.status != "failed"} == set()
    assert {s: r.notes for s, r in found.items() if reasons[s] not in r.notes[0]} == {}
    assert found.keys() == reasons.keys()
    written = records.to_json(report.to_dict()).encode()
    assert len(json.loads(written)["records"]) == len(reasons) + 1
    assert not any(line.startswith(("=", "+", "@", "-")) for line in records.to_csv(report).splitlines())


def test_a_name_that_climbs_out_is_no_student(lab, tmp_path):
    from grader.submissions import BadSubmission, Submission, read

    path = tmp_path / "submitted" / ".." / "x" / lab.slug / f"{lab.slug}.ipynb"
    (tmp_path / "submitted").mkdir()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(lab.master()))
    with pytest.raises(BadSubmission, match="is no student's"):
        read(Submission("../x", path), tmp_path / "submitted")


@pytest.mark.parametrize("sandbox", ("bwrap",))
def test_a_full_disk_loses_nothing(lab, hand_in, tmp_path, sandbox):
    """The run stops with the reason; no half record stays, and the next run completes the class."""
    needs(sandbox)
    for student in ("ada", "bob", "eve"):
        hand_in(student, lab.master())
    kept = tmp_path / "records"
    options = Options(sandbox=sandbox, jobs=1, records=kept, limits=QUICK)
    grade(lab, submission(lab), sandbox)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            grade_class(tmp_path / "submitted", lab, options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, usual)
    assert list(kept.rglob("*.*")) == []
    report = grade_class(tmp_path / "submitted", lab, options)
    assert [r.score for r in report.records] == [100.0] * 3
    resumed = []
    grade_class(tmp_path / "submitted", lab, options, lambda record, old: resumed.append(old))
    assert resumed == [True] * 3


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_script_reaches_a_page(lab, sandbox):
    """Pictures and text are all that a student's cell may show, whatever its side of the wall says it showed."""
    needs(sandbox)
    shown = [{"text/html": "<script>", "text/plain": "<b>text", "image/png": '"><script>', "image/svg+xml": "<svg>"}, 7]
    answer = (
        FORGE
        + f"SHOWN = {json.dumps(shown)!r}\n"
        + "def forged(self, tree, buffers):\n    frame({'value': {'d': [['error', None], ['shown', SHOWN]]}})\n"
        + "side.Server.answer = forged\n"
    )
    executed = execute(submission(lab, before=answer), lab, Options(sandbox=sandbox, limits=QUICK), Report())
    data = [o.data for c in executed.cells for o in c.get("outputs", []) if o.output_type == "display_data"]
    assert {"text/plain": "<b>text"} in data
    assert {key for d in data for key in d} == {"text/plain"}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_honest_picture_does(lab, sandbox):
    needs(sandbox)
    draw = (
        "import io, matplotlib.pyplot as plt\nfrom IPython.display import Image, display\nfile = io.BytesIO()\n"
        "plt.figure(figsize=(1, 1)).savefig(file)\ndisplay(Image(file.getvalue()))\nImage(file.getvalue())"
    )
    executed = execute(submission(lab, before=draw), lab, Options(sandbox=sandbox, limits=QUICK), Report())
    data = [o.data for c in executed.cells for o in c.get("outputs", []) if o.output_type == "display_data"]
    assert [sorted(d) for d in data] == [["image/png", "text/plain"]] * 2
