"""How much a program holds: the size of its tiles, and of all that it keeps at one time.

Every value of an interpreted kernel is one of the interpreter's handles, whether it was loaded, computed or made of a
constant. A handle counts from its making until the interpreter drops it, so a tile that a kernel still needs counts
under whatever name or in whatever tuple it is kept. A number of Python's that a kernel makes of a tensor, as a loop
bound is, cannot be followed: it counts as one element until the program ends.
"""

from collections.abc import Callable
from typing import Any


class Tiles:
    """Counts of one launch, in elements; tiles of pointers and masks count like those of values.

    `largest`: of one tile. `most_held`: of all tiles that one program holds at one time. `made` and `dropped` stand in
    for the handle's `__post_init__` and `__del__`.
    """

    def __init__(self) -> None:
        self.largest = 0
        self.most_held = 0
        self._held = 0
        self._program = 0

    def next_program(self) -> None:
        """What the one before held is gone, though its last handles may not be."""
        self._program += 1
        self._held = 0

    def made(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(handle: Any) -> None:
            original(handle)
            size = handle.data.size
            handle.counted = (self._program, size)
            self._held += size
            self.largest = max(self.largest, size)
            self.most_held = max(self.most_held, self._held)

        return counted

    def number_made(self) -> None:
        self._held += 1
        self.most_held = max(self.most_held, self._held)

    def dropped(self, handle: Any) -> None:
        program, size = getattr(handle, "counted", (-1, 0))
        if program == self._program:
            self._held -= size
