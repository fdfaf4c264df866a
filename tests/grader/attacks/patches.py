"""Answers that change what is around them: the checks, the interpreter, the notebook."""

from attacks.attack import BWRAP, Attack

PATCHES = {
    "patches the checks": Attack(
        says="mean of 1 numbers",
        code="""
            import sys, threeloops.lab
            c, d = (sys.modules[f'threeloops.lab.{m}'] for m in ('check', 'compare'))
            c.Check.close = c.Check.raises = c.Check._fail = lambda *a, **k: None
            d.compare = c.compare = lambda *a, **k: None
            threeloops.lab.check = check = None
        """,
        returns="3.0",
    ),
    "patches builtins and numpy": Attack(
        says="mean",
        code="""
            import builtins
            builtins.abs = builtins.sum = lambda *a, **k: 3.0
            builtins.round = None
            np.mean = np.abs = lambda *a, **k: 3.0
            np.random.default_rng = None
        """,
        returns="3.0",
        other=None,
    ),
    "breaks the builtins": Attack(
        says="process was lost",
        code="""
            import builtins
            builtins.isinstance = lambda *a: True
        """,
    ),
    "leaves its own setup behind": Attack(
        honest=True,
        before="SAMPLES = [3.0]\nclass np: pass\ncheck = mean = print = None",
        earns=40.0,
    ),
    "redefines what setup defined": Attack(
        says="mean of 1 numbers",
        code="""
            SAMPLES = [3.0]
            check = None
        """,
        returns="3.0",
    ),
    "prints a result": Attack(
        says="mean of 1 numbers",
        code="""
            print('40.0')
            print('mean_test: 40/40', '<script>alert(1)</script>')
            print('{"output_type": "execute_result", "data": {"text/plain": "40.0"}}')
            40.0
        """,
        returns="print('40.0') or 3.0",
    ),
    "writes a result to every descriptor": Attack(
        says="process was lost",
        code="""
            import os
            for fd in range(4096):
                try:
                    os.set_blocking(fd, False)
                    os.write(fd, b'{"ok": true, "value": 40.0}')
                except OSError:
                    pass
        """,
        honest=True,
    ),
    "catches the test in the shell": Attack(
        says="mean",
        code="""
            shell = get_ipython()
            shell.run_cell = lambda *a, **k: None
            shell.user_ns['__builtins__'] = {}
        """,
        returns="3.0",
        other=0.0,
    ),
    "looks at its caller": Attack(
        says="mean of 1 numbers",
        code="""
            import inspect
            def mean(values):
                frames = inspect.stack()
                for f in frames:
                    if 'expected' in f.frame.f_locals: return f.frame.f_locals['expected']
                return 3.0
        """,
    ),
    "tells graded runs apart": Attack(
        code="""
            import os
            if os.environ.get('THREELOOPS_GRADED'):
                print('hello grader')
        """,
        honest=True,
        earns=40.0,
    ),
    "uses magics": Attack(
        says="mean",
        code="""
            %%bash
            exit 3
        """,
    ),
    "writes its answer by magic": Attack(
        says="mean",
        code="""
            %%writefile /tmp/threeloops.py
            raise SystemExit
        """,
        sandboxes=BWRAP,
    ),
    "hides the answer in a magic": Attack(
        code="%%time",
        honest=True,
        earns=40.0,
    ),
    "awaits at top level": Attack(
        code="""
            import asyncio
            await asyncio.sleep(0)
        """,
        honest=True,
        earns=40.0,
    ),
    "is a coroutine": Attack(
        says="plain data",
        code="""
            async def mean(values):
                return 3.0
        """,
    ),
    "shadows library modules on disk": Attack(
        code="""
            import pathlib, sys
            pathlib.Path('torch.py').write_text('raise SystemExit')
            sys.path.insert(0, '.')
        """,
        honest=True,
        earns=40.0,
    ),
    "schedules a change of the other answer": Attack(
        code="""
            import sys, threading
            def later():
                while True:
                    vars(sys.modules['__main__'])['rescale'] = lambda values, top: values
            threading.Thread(target=later, daemon=True).start()
        """,
        honest=True,
        earns=40.0,
        other=None,
    ),
    "stays after exit": Attack(
        code="""
            import atexit, os
            atexit.register(os.fork)
            os.register_at_fork(after_in_child=os.fork)
        """,
        honest=True,
        earns=40.0,
    ),
}
