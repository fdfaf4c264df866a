"""Answers that speak for the student's end of the wall, past its codec."""

from dataclasses import replace

from attacks.attack import BWRAP, SHORT, Attack

FORGERIES = {
    "answers what it likes": Attack(
        says="mean of 1 numbers",
        forges="frame({'value': 3.0})",
    ),
    "answers with no frame": Attack(
        says="it sent more than may cross the wall",
        forges="raw.sendall(b'\\xff' * 100)",
        other=0.0,
    ),
    "answers with no JSON": Attack(
        says="it broke the protocol",
        forges="frame(b'{\"value\": ')",
        other=0.0,
    ),
    "answers with a list": Attack(
        says="it broke the protocol",
        forges="frame(b'[3.0]')",
        other=0.0,
    ),
    "answers with brackets alone": Attack(
        says="it broke the protocol",
        forges="frame(b'[' * (4 << 20))",
        other=0.0,
    ),
    "answers half a frame": Attack(
        says="process was lost: it ended",
        forges="raw.sendall(struct.pack('<IIQ', 100, 0, 0)) or os._exit(0)",
        other=0.0,
    ),
    "promises 512 MiB and never sends them": Attack(
        says="did not answer within 2 s",
        forges="raw.sendall(struct.pack('<IIQQ', 12, 1, 512 << 20, 512 << 20) + b'{\"value\": 0}')",
        other=0.0,
        limits=SHORT,
    ),
    "drips": Attack(
        says="did not answer within 2 s",
        forges="""
            raw.sendall(struct.pack("<IIQQ", 2, 1, 1 << 28, 1 << 28) + b"{}")
            while True:
                raw.send(b"x")
        """,
        other=0.0,
        limits=SHORT,
    ),
    "answers by callbacks that nobody gave away": Attack(
        says="no test gave away",
        forges="frame({'callback': 0, 'value': [[], {}]})",
    ),
    "answers by floods of text": Attack(
        says="mean of the samples",
        forges="frame({'value': 0.0, 'printed': 'x' * (4 << 20 - 1 >> 1)})",
    ),
    "forges a bool that is 2": Attack(
        says="neither true nor false",
        forges="frame({'value': {'a': ['bool', [], 0]}}, b'\\x02')",
    ),
    "forges one buffer for a million values": Attack(
        says="no such buffer",
        forges="frame({'value': [{'b': 0}] * 200_000}, bytes(64 << 20))",
    ),
    "forges a stride of half a gigabyte, often": Attack(
        says="malformed",
        forges="""
            far = [{"T": ["uint8", [2], i, None, [(512 << 20) - 2]]} for i in range(4000)]
            frame({"value": far}, *[b"xx"] * 4000)
        """,
    ),
    "forges a stride that reaches far": Attack(
        says="stride too large",
        forges="frame({'value': {'T': ['uint8', [2], 0, None, [1 << 40]]}}, b'xx')",
    ),
    "forges an unknown class": Attack(
        says="unknown class",
        forges="frame({'value': {'r': ['__main__', 'Path', [['x', 1]]]}})",
    ),
    "forges a library object": Attack(
        says="unknown class",
        forges="frame({'value': {'r': ['threeloops.lab.check', 'Check', []]}})",
    ),
    "forges keys that collide": Attack(
        says="did not end within 2 s",
        forges="frame({'value': {'d': [[i * (2**61 - 1), 0] for i in range(60_000)]}})",
        other=0.0,
        limits=replace(SHORT, notebook_seconds=6),
        sandboxes=BWRAP,
    ),
    "forges a handle that is no number": Attack(
        says="bad handle",
        forges="frame({'value': {'h': [1 << 60, 'object', 'x']}})",
    ),
    "forges an exception of the wall": Attack(
        says="LinkDead: x",
        forges="""
            names = ["grader.link.LinkDead", "builtins.BaseException", "builtins.Exception"]
            frame({"error": {"classes": names, "message": "x"}})
        """,
    ),
    "forges an exception with a deep text": Attack(
        says="error: 1",
        forges="frame(b'{\"error\": {\"classes\": [' + b'[' * 500 + b']' * 500 + b'], \"message\": 1}}')",
    ),
    "forges a terminal's orders": Attack(
        says="]0;owned[2J?",
        forges="frame({'error': {'classes': ['builtins.ValueError'], 'message': '\\x1b]0;owned\\x07\\x1b[2J\\ud800'}})",
    ),
    "races its own answers": Attack(
        says="mean",
        code="""
            import threading

            def flood():
                while True:
                    frame({"value": 3.0, "printed": "", "ok": True})

            [threading.Thread(target=flood, daemon=True).start() for _ in range(4)]
        """,
        forges="usual(self, tree, [])",
        other=None,
    ),
}
