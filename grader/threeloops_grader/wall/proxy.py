"""The student's objects, as a test cell sees them.

In a test cell that says `softmax(x)`, `softmax` is a `Proxy`. Calling it sends the arguments across and returns plain
data. Any other result comes back as another proxy, which can be called and indexed but not compared, converted or
trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from threeloops_grader.transport.link import WallError
from threeloops_grader.wall.messages import Asks, plain, quoting

__all__ = ["Proxy"]

_HANDLE_BITS = 48


class Proxy:
    """An object of the student's, as seen from here: it can be called and indexed, and is never data."""

    __slots__ = ("_handle", "_kind", "_methods", "_owner", "_seen", "_wall", "__name__")
    stands_for_another = True  # so that a check names the object and not this class

    def __init__(self, connection: Asks, handle: Any) -> None:
        if type(handle) is not list or len(handle) != 3 or type(handle[0]) is not int or handle[0] >> _HANDLE_BITS:
            raise WallError("a malformed value came back (bad handle)")
        object.__setattr__(self, "_wall", connection)
        object.__setattr__(self, "_handle", handle[0])
        object.__setattr__(self, "_kind", str(handle[1]))
        object.__setattr__(self, "__name__", str(handle[2])[:80])
        object.__setattr__(self, "_methods", {})
        object.__setattr__(self, "_seen", {})
        object.__setattr__(self, "_owner", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = {} if self._owner is None else {"method_of": self._owner}
        return self._wall.call({"handle": self._handle, **owner}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the value of an attribute. It stays the same until the test calls something of the student's or sets
        an attribute, so that a test which looks twice sees one value. A method is fetched once, and each call looks it
        up over there."""
        if name.startswith("_"):
            raise AttributeError(f"{name}: private names do not cross the wall")
        if name in self._methods:
            return self._methods[name]
        calls, value = self._seen.get(name, (-1, None))
        if calls != self._wall.calls:
            value = self._wall.request({"op": "attribute", "handle": self._handle, "name": name})
            self._seen[name] = self._wall.calls, value
        if type(value) is Proxy and value._kind == "method":
            object.__setattr__(value, "_owner", [self._handle, name])
            self._methods[name] = value
        return plain(value)  # in lists of its own, which the test may change

    def __setattr__(self, name: str, value: Any) -> None:
        message = self._wall.pack(value)
        self._wall.calls += 1
        self._wall.request({"op": "set", "handle": self._handle, "name": name, **message.tree}, message)

    def __iter__(self) -> Proxy:
        if self._kind != "iterator":
            reason = f"the student's {self.__name__!r} object is no iterator, and only iterators cross the wall"
            raise quoting(self.__name__, TypeError(reason))
        return self

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._wall.garbage.append(self._handle)

    def __repr__(self) -> str:
        return f"<the student's {self.__name__}>"

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError("a test cannot subclass the student's class: it lives behind the wall")

    def _refuse(self, *_: Any) -> Any:
        reason = (
            f"expected plain data (numbers, strings, lists, arrays, tensors), got a {self.__name__!r} object, "
            "which cannot be compared or used as a value"
        )
        raise quoting(self.__name__, WallError(reason))

    __hash__ = None  # type: ignore[assignment]


_REFUSED = (
    "eq ne lt le gt ge bool float int index complex bytes round trunc floor ceil fspath "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow matmul rmatmul "
    "and rand or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert "
    "array reduce reduce_ex"
)
for _name in _REFUSED.split():
    setattr(Proxy, f"__{_name}__", Proxy._refuse)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> Any:
        return self._wall.call({"handle": self._handle, "method": name}, args, {})

    return method


for _name in ("__len__", "__getitem__", "__setitem__", "__next__", "__enter__", "__exit__", "__contains__"):
    setattr(Proxy, _name, _forwarded(_name))
