"""How an answer can end, or not end."""

from attacks.attack import SHORT, Attack

ENDINGS = {
    "raises": Attack(
        says="ValueError: no answer today",
        code="raise ValueError('no answer today')",
    ),
    "raises in the call": Attack(
        says="ZeroDivisionError",
        returns="1 // 0",
    ),
    "exits": Attack(
        says="SystemExit",
        code="""
            import sys
            sys.exit(0)
        """,
    ),
    "exits in the call": Attack(
        says="SystemExit",
        code="import sys",
        returns="sys.exit(0)",
    ),
    "ends its own process": Attack(
        says="process was lost: it ended",
        code="""
            import os
            os._exit(0)
        """,
    ),
    "ends its own process in the call": Attack(
        says="process was lost: it ended",
        code="import os",
        returns="os._exit(0)",
    ),
    "kills its own process": Attack(
        says="process was lost: it ended",
        code="""
            import os, signal
            os.kill(os.getpid(), signal.SIGSEGV)
            os.abort()
        """,
    ),
    "kills its own kernel": Attack(
        says="kernel",
        code="get_ipython().kernel.do_shutdown(False)",
    ),
    "asks the kernel to stop": Attack(
        says="mean",
        code="""
            exit()
            quit()
        """,
        returns="3.0",
    ),
    "closes the channel": Attack(
        says="process was lost: it ended",
        code="""
            import os
            os.close(200)
        """,
    ),
    "loops for ever and swallows interrupts": Attack(
        says="did not answer within 2 s",
        code="""
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
        """,
        limits=SHORT,
    ),
    "loops for ever in the call": Attack(
        says="did not answer within 2 s",
        code="""
            def spin():
                while True:
                    pass
        """,
        returns="spin()",
        limits=SHORT,
    ),
    "waits for input": Attack(
        says="Error",
        returns="float(input('the mean? '))",
    ),
    "hangs in C, deaf to signals": Attack(
        says="did not answer within 2 s",
        code="""
            import signal
            for n in range(1, 65):
                try:
                    signal.signal(n, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            sum(range(10**12))
        """,
        limits=SHORT,
    ),
    "raises what is no Exception": Attack(
        says="caught?",
        code="""
            class Bad(BaseException): pass
            def fail():
                raise Bad('caught?')
        """,
        returns="fail()",
    ),
    "raises an exception without a text": Attack(
        says="without a readable message",
        code="""
            class Mute(ValueError):
                def __str__(self):
                    raise SystemExit
            def fail():
                raise Mute('values')
        """,
        returns="fail()",
    ),
    "raises an exception with an endless text": Attack(
        says="values",
        code="""
            def fail():
                raise ValueError('values' * 10**7)
        """,
        returns="fail()",
    ),
    "recurses for ever": Attack(
        says="RecursionError",
        returns="mean(values)",
    ),
    "has no syntax": Attack(
        says="SyntaxError",
        code="""
            def mean(values:
                return 3.0
        """,
    ),
    "is 5 MiB of text": Attack(
        says="at most 50,000 are read",
        code="# " + "x" * (5 << 20),
        honest=True,
    ),
    "is half a character": Attack(
        says="mean of 1 numbers",
        code="x = '\ud800'",
        returns="3.0",
    ),
}
