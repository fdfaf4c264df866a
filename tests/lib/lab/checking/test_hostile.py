"""Behind the wall an answer is a proxy that refuses with a BaseException; nothing of it may ever pass for success."""

import numpy as np
import pytest
import torch
from threeloops.lab import CheckFailed, check


class Refused(BaseException):
    """What the wall raises: no `except Exception` may catch it."""


def refuse(self, *args, **kwargs):
    raise Refused


OPERATORS = """
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __len__ __iter__ __next__ __contains__ __getitem__
    __getattr__ __call__ __float__ __int__ __complex__ __index__ __abs__ __neg__ __add__ __radd__ __sub__ __rsub__
    __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __round__ __str__ __repr__ __format__ __bytes__ __array__
    __array_ufunc__ __torch_function__ __enter__ __exit__ __reduce_ex__ __dir__ __instancecheck__
""".split()

Proxy = type("Proxy", (), dict.fromkeys(OPERATORS, refuse))
Disguised = type("Disguised", (Proxy,), {"__class__": property(lambda self: float)})

SUCCESSES = [
    lambda x: check.close(x, 1.0),
    lambda x: check.close([1.0, x], [1.0, 2.0]),
    lambda x: check.close({"loss": x}, {"loss": 1.0}),
    lambda x: check.close(x, torch.ones(2)),
    lambda x: check.equal(x, "text"),
    lambda x: check.equal(x, None),
    lambda x: check.equal([x], [None]),
    lambda x: check.equal((1, x), (1, 2)),
    lambda x: check.equal({1: x}, {1: 2}),
    lambda x: check.equal(x, {1}),
    lambda x: check.true(x, "a truth"),
    lambda x: check.shape(x, (2,)),
    lambda x: check.dtype(x, torch.float32),
]


@pytest.mark.parametrize("make", [Proxy, Disguised])
@pytest.mark.parametrize("use", SUCCESSES)
def test_a_proxy_fails_every_check_without_being_asked_anything(make, use):
    with pytest.raises(CheckFailed, match=make.__name__), check("answer", "an answer"):
        use(make())


def test_what_was_got_is_named_by_its_type():
    with pytest.raises(CheckFailed, match="got a list that holds a Proxy\n  expected   plain data"):
        check.close([1.0, Proxy()], [1.0, 2.0])


def test_an_array_of_objects_is_no_plain_data():
    hidden = np.empty(2, dtype=object)
    hidden[0] = hidden[1] = object()  # numpy itself would ask a Proxy for its array
    for expected in (np.ones(2), [1.0, 1.0], np.array(["a", "b"]), None):
        for compare in (check.close, check.equal):
            with pytest.raises(CheckFailed, match="got a ndarray"):
                compare(hidden, expected)


def test_a_call_that_refuses_is_no_expected_exception_and_no_failed_check():
    for exc_type in (Exception, ValueError, RuntimeError):
        with pytest.raises(Refused), check("answer", "an answer"):
            check.raises(exc_type, Proxy())


def test_a_refusal_inside_a_block_goes_through_unchanged(capsys):
    refused = Refused()

    def call():
        raise refused

    with pytest.raises(Refused) as caught, check("answer", "an answer"):
        check.true(True, "")
        call()
    assert caught.value is refused and not hasattr(refused, "__notes__")
    assert capsys.readouterr().out == ""


def test_a_call_that_returns_a_proxy_where_an_exception_was_expected():
    with pytest.raises(CheckFailed, match="returned a Proxy"):
        check.raises(ValueError, lambda: Proxy())


class AlwaysEqual(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __hash__ = float.__hash__


class AgreeableList(list):
    def __eq__(self, other):
        return True

    __hash__ = None


class AgreeableTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        return True


@pytest.mark.parametrize("value", [AlwaysEqual(5.0), AgreeableList([9]), torch.ones(1).as_subclass(AgreeableTensor)])
def test_a_subclass_that_agrees_with_everything_is_no_plain_data(value):
    for expected in (1.0, [1], torch.zeros(1)):
        for compare in (check.close, check.equal):
            with pytest.raises(CheckFailed, match="plain data"):
                compare(value, expected)


def test_data_that_contains_itself_fails():
    endless = []
    endless.append(endless)
    with pytest.raises(CheckFailed, match="nested more than 64 deep"):
        check.equal(endless, [[]])
