"""The smallest checks on a stranger's recording: is this a number in range, a known word, a mapping with these keys?"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from threeloops.inner.replay.allowlist.admit import Kernel
from threeloops.inner.replay.recordings.steps import DTYPES, Dtype, RecordingRefused

BYTES = {name: int("".join(c for c in name.partition("_")[0] if c.isdigit()) or 8) // 8 for name in DTYPES}
BYTES |= {"bfloat16": 2}
TL_DTYPES = frozenset(
    "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 fp16 bf16 fp32 fp64 "
    "fp8e4nv fp8e5 fp8e4b8 fp8e5b16 fp8e4b15".split()
)
LARGEST = 1 << 63
_MAX_TEXT = 64


def unknown_kernel(name: Any, kernels: Mapping[str, Kernel]) -> str:
    """What to say of a launched kernel that the cell does not define."""
    has = ", ".join(sorted(kernels)) or "none"
    return (
        f"launches {str(name)[:_MAX_TEXT]!r}, which its cell does not define as a @triton.jit function at the top "
        f"level (admitted there: {has}); a kernel stands in the cell of its launcher, under its own name"
    )


def malformed(what: str) -> NoReturn:
    raise RecordingRefused(
        f"was recorded in a form that cannot be read ({what}): nothing in its cell may patch the recording"
    )


def mapping(data: Any, names: Sequence[str]) -> dict[str, Any]:
    if type(data) is not dict or set(data) != set(names):
        malformed("its parts")
    return data


def any_mapping(data: Any) -> dict[str, Any]:
    if type(data) is not dict or len(data) > 256:
        malformed("its parts")
    return data


def named(data: Any, kernel: Kernel) -> dict[str, Any]:
    given = any_mapping(data)
    if not set(given) <= set(kernel.parameters):
        raise RecordingRefused(
            f"launches a {kernel.name} with arguments that its cell's text does not have: run the cell again, and "
            "define each kernel once"
        )
    return given


def sequence(data: Any, most: int, what: str) -> list[Any]:
    if type(data) is not list:
        malformed(what)
    if len(data) > most:
        raise RecordingRefused(f"does too much: {len(data):,} {what}, at most {most:,}")
    return data


def whole(data: Any, low: int, end: int) -> int:
    if type(data) is not int or not low <= data < end:
        malformed("a number out of range")
    return data


def number(data: Any, *, boolean: bool = False) -> Any:
    if type(data) is bool and boolean:
        return data
    if type(data) is int and -LARGEST <= data < 2 * LARGEST:
        return data
    if type(data) is float:
        return data
    malformed("a number")


def word(data: Any, words: Any) -> str:
    if type(data) is not str or data not in words:
        malformed("a word")
    return data


def constant(data: Any) -> Any:
    """A compile-time argument: a number, a text, None, a dtype of tl or a tuple of these."""
    if data is None or type(data) in (bool, int, float):
        return data if data is None else number(data, boolean=True)
    if type(data) is str and len(data) <= _MAX_TEXT:
        return data
    if type(data) is list and len(data) <= 64 and not any(type(each) is list for each in data):
        return tuple(constant(each) for each in data)
    if type(data) is dict and set(data) == {"dtype"}:
        return Dtype(word(mapping(data["dtype"], ("name",))["name"], TL_DTYPES))
    malformed("a constant")
