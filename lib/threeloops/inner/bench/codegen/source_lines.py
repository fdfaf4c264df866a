"""Which line of the source an instruction was made from: both compilers keep it as debug information."""

import re

SASS_LINE = re.compile(r'^\s*//## File ".*", line (\d+)')
AMDGCN_LINE = re.compile(r"^\s*\.loc\s+\d+ (\d+) ")
INSTRUCTION = re.compile(
    r"^\s*(?:/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?)?(?P<opcode>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?=[\s;]|$)"
)


def instructions_by_line(text: str, opcodes: str) -> dict[int, int]:
    """Line → number of instructions, of SASS or AMDGCN, whose opcode (with modifiers) starts as `opcodes` says.

    Line 0 has what the compiler ascribes to none.
    """
    wanted = re.compile(opcodes)
    line, found = 0, dict[int, int]()
    for each in text.splitlines():
        if place := SASS_LINE.match(each) or AMDGCN_LINE.match(each):
            line = int(place[1])
        elif (instruction := INSTRUCTION.match(each)) and wanted.match(instruction["opcode"]):
            found[line] = found.get(line, 0) + 1
    return dict(sorted(found.items()))
