"""How much a replayed launcher may ask for."""

from dataclasses import dataclass

OPTIONS = {"num_warps": 64, "num_stages": 16, "num_ctas": 16, "maxnreg": 255}
"""Options of a launch and the largest value of each. Others, as a debug switch, are dropped when they are recorded."""


@dataclass(frozen=True)
class Limits:
    """What one plan may ask for.

    `fills`: results that a launcher remembered could be written down number by number. `copies`: so could a transpose,
    row by row. `programs` counts those of all launches: the interpreter runs about a thousand a second.
    """

    steps: int = 2000
    fills: int = 64
    copies: int = 32
    launches: int = 256
    programs: int = 200_000
    allocated_bytes: int = 1 << 30
    elements: int = 1 << 27
    outputs: int = 64
    output_bytes: int = 1 << 28


EXECUTED = Limits()
UNEXECUTED = Limits(programs=1 << 62, allocated_bytes=1 << 45, elements=1 << 44, output_bytes=1 << 45)
"""For plans that are only compiled."""
