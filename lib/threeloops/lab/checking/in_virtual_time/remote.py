"""Objects that stand for the student's objects in a program in virtual time. The program can call, await and read
them."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

__all__ = ["Loop", "Remote", "is_of_the_student", "made"]


class Loop(Protocol):
    """The methods of the loop that these objects need."""

    def call(self, target: Any, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method at once."""
        ...

    async def operate(
        self, target: Any, method: str, args: Sequence[Any], kwargs: dict[str, Any], lane: int | None = None
    ) -> Any:
        """Await the result of a method in the sandbox."""
        ...

    def new_lane(self) -> int:
        """Return a number for the task in which all operations on one stream run."""
        ...


def is_of_the_student(value: Any) -> bool:
    """Tell whether a value stands for an object in the sandbox."""
    return getattr(type(value), "stands_for_another", False) is True


class Remote:
    """An object of the student's. Methods in `asynchronous` are awaited, and all others are called at once."""

    __slots__ = ("_asynchronous", "_loop", "lane", "proxy")
    _asynchronous: frozenset[str]
    _loop: Loop
    proxy: Any
    lane: int | None

    def __init__(self, loop: Loop, proxy: Any, asynchronous: Sequence[str] = (), lane: int | None = None) -> None:
        object.__setattr__(self, "_loop", loop)
        object.__setattr__(self, "_asynchronous", frozenset(asynchronous))
        object.__setattr__(self, "lane", lane)
        object.__setattr__(self, "proxy", proxy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._loop.call(self.proxy, "", args, kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{name}: private names do not cross the wall")

        def method(*args: Any, **kwargs: Any) -> Any:
            ask = self._loop.operate if name in self._asynchronous else self._loop.call
            return ask(self.proxy, name, args, kwargs)

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.proxy, name, value)

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("expected plain data (numbers, strings, lists), got an object that lives behind the wall")

    __hash__ = None  # type: ignore[assignment]


for _name in "eq ne lt le gt ge bool len iter contains float int index".split():
    setattr(Remote, f"__{_name}__", Remote._refuse)


class _Awaitable(Remote):
    """A coroutine, or another object that can be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._loop.operate(self.proxy, "__await__", (), {}).__await__()


class _Stream(Remote):
    """An asynchronous generator."""

    __slots__ = ()

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        return await self._loop.operate(self.proxy, "__anext__", (), {}, self.lane)


def made(loop: Loop, kind: Any, value: Any, names: Any) -> Any:
    """Return the result of a call: plain data, or a stand-in for an object that stays in the sandbox."""
    if kind == "value":
        return value
    names = [name for name in names if type(name) is str] if type(names) is list else []
    if not is_of_the_student(value):
        raise RuntimeError("the sandbox of this submission gave a malformed answer")
    match kind:
        case "awaitable" | "coroutine":
            return _Awaitable(loop, value)
        case "stream":
            return _Stream(loop, value, lane=loop.new_lane())
        case _:
            return Remote(loop, value, names)
