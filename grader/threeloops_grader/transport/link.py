"""The socket that connects the two sides of the wall. It is their only connection. This module does not import torch.

Every receive has a deadline and a size limit, and a peer that breaks the format is cut off for good.
"""

import socket
from collections.abc import Sequence
from typing import Any, NoReturn

from threeloops import frames
from threeloops.frames import Buffer, FrameError, TooLarge

__all__ = ["LIMITS", "FrameLink", "LinkDead", "WallError"]

LIMITS = frames.FrameLimits(tree_bytes=4 << 20, body_bytes=512 << 20)


class WallError(BaseException):
    """Something that may not cross the wall tried to.

    A BaseException on purpose: a test that expects "some exception" of the student's code must not be satisfied by
    the wall's own refusal.
    """


class LinkDead(BaseException):
    """There is no answer from the other side, and there will not be one."""


class FrameLink:
    """One end of the channel. `deadline`, in seconds of `time.monotonic`, bounds every send and receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.deadline: float | None = None
        self.dead: str | None = None

    def send(self, tree: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send one frame.

        Raises:
            WallError: the frame exceeds the size limits; nothing was sent and the link lives on.
            LinkDead: the other side is gone or did not read in time.
        """
        if self.dead:
            raise LinkDead(self.dead)
        try:
            frames.send(self.socket.fileno(), tree, buffers, self.deadline, LIMITS)
        except TooLarge as error:
            raise WallError(str(error)) from None
        except FrameError as error:
            self._die(error)

    def receive(self) -> tuple[dict[str, Any], list[bytearray]]:
        """Return the next frame.

        Raises:
            LinkDead: the deadline passed, the other side ended, or it sent something that is not a frame.
        """
        if self.dead:
            raise LinkDead(self.dead)
        try:
            return frames.receive(self.socket.fileno(), self.deadline, LIMITS)
        except FrameError as error:
            self._die(error)

    def last_word(self) -> tuple[dict[str, Any], list[bytearray]] | None:
        """Return the other end's last message before it hung up, after `send` has failed, or None if there was none."""
        try:
            return frames.receive(self.socket.fileno(), self.deadline, LIMITS)
        except FrameError:
            return None

    def close(self) -> None:
        self.dead = self.dead or "it was closed"
        self.socket.close()

    def _die(self, error: FrameError) -> NoReturn:
        self.dead = str(error)
        raise LinkDead(self.dead) from None
