"""Answers that return something made to pass."""

from dataclasses import replace

from attacks.attack import QUICK, Attack

LIES = {
    "equals everything": Attack(
        says="plain data",
        code="""
            class Yes:
                def __eq__(self, other): return True
                def __ne__(self, other): return False
                def __float__(self): return 3.0
                def __sub__(self, other): return 0.0
                __rsub__ = __sub__
                def __le__(self, other): return True
                __ge__ = __lt__ = __gt__ = __le__
                def __abs__(self): return 0.0
                def __bool__(self): return True
                def __hash__(self): return 0
                def __array__(self, *a, **k):
                    import numpy
                    return numpy.float64(3.0)
                shape, dtype, ndim = (), 'float64', 0
                def item(self): return 3.0
                __class__ = float
        """,
        returns="Yes()",
    ),
    "is a float that equals everything": Attack(
        says="plain data",
        code="""
            class Yes(float):
                __eq__ = __le__ = lambda self, other: True
                __hash__ = float.__hash__
        """,
        returns="Yes(3.0)",
    ),
    "is an int that equals everything": Attack(
        says="plain data",
        code="""
            class Yes(int):
                __eq__ = __le__ = lambda self, other: True
                __hash__ = int.__hash__
        """,
        returns="Yes(3)",
    ),
    "is a text that equals everything": Attack(
        says="plain data",
        code="""
            class Yes(str):
                __eq__ = lambda self, other: True
                __hash__ = str.__hash__
        """,
        returns="Yes('3.0')",
    ),
    "is a tensor with operators of its own": Attack(
        says="the sum was not divided by the count",
        code="""
            import torch
            class Yes(torch.Tensor):
                @classmethod
                def __torch_function__(cls, function, types, args=(), kwargs=None):
                    with torch._C.DisableTorchFunctionSubclass():
                        return function(*args, **(kwargs or {}))
                __eq__ = __le__ = lambda self, other: True
        """,
        returns="torch.tensor(9.0, dtype=torch.float64).as_subclass(Yes)",
    ),
    "is an array with operators of its own": Attack(
        says="the sum was not divided by the count",
        code="""
            class Yes(np.ndarray):
                __eq__ = __le__ = __sub__ = __rsub__ = lambda self, other: np.zeros(())
                def __array_ufunc__(self, *a, **k): return np.zeros(())
        """,
        returns="np.float64(9.0).reshape(()).view(Yes)",
    ),
    "is masked": Attack(
        says="mean of the samples",
        returns="np.ma.masked_array([3.0], [True])[0]",
    ),
    "is not a number": Attack(
        says="nan",
        returns="float('nan')",
    ),
    "is infinite": Attack(
        says="inf",
        returns="float('inf')",
    ),
    "is a truth": Attack(
        says="mean of the samples",
        returns="True",
    ),
    "is complex": Attack(
        says="a complex",
        returns="3 + 0j",
    ),
    "is nothing": Attack(
        says="None",
        returns="None",
    ),
    "is a huge integer": Attack(
        says="too large to cross",
        returns="10 ** 5000",
    ),
    "is a rather large integer": Attack(
        says="too large to convert",
        returns="10 ** 4000",
    ),
    "holds itself": Attack(
        says="deep cannot cross the wall",
        code="""
            x = []
            x.append(x)
        """,
        returns="x",
    ),
    "is nested 100,000 deep": Attack(
        says="deep cannot cross the wall",
        code="""
            x = 3.0
            for _ in range(100_000):
                x = [x]
        """,
        returns="x",
    ),
    "is 200,000 objects": Attack(
        says="too large to cross",
        returns="[object() for _ in range(200_000)]",
        limits=replace(QUICK, test_seconds=20),
    ),
    "is 50,000 objects": Attack(
        says="plain data",
        returns="[object() for _ in range(50_000)]",
    ),
    "is a range of a quintillion": Attack(
        says="range",
        returns="range(10 ** 18)",
    ),
    "is 600 MiB": Attack(
        says="too large to cross the wall",
        returns="np.zeros(75 << 20)",
        limits=replace(QUICK, memory_mb=3000),
    ),
    "is an endless generator": Attack(
        says="plain data",
        code="import itertools as it",
        returns="it.count()",
    ),
    "is an array of objects": Attack(
        says="plain data",
        returns="np.array([3.0], dtype=object)[0:1]",
    ),
    "is a tensor without data": Attack(
        says="meta",
        code="import torch",
        returns="torch.empty((), device='meta')",
    ),
    "is a sparse tensor": Attack(
        says="plain data",
        code="import torch",
        returns="torch.eye(3).to_sparse()",
    ),
    "runs code where it is unpickled": Attack(
        says="plain data",
        code="""
            import os
            class Gadget:
                def __reduce__(self):
                    return os._exit, (0,)
                __reduce_ex__ = lambda self, protocol: self.__reduce__()
        """,
        returns="Gadget()",
    ),
    "is a class": Attack(
        says="plain data",
        returns="float",
    ),
    "is the argument, changed": Attack(
        says="mean of the samples",
        code="""
            def mean(values):
                values.clear()
                values.append(3.0)
                return values
        """,
    ),
    "empties the argument for the next check": Attack(
        code="""
            def mean(values):
                if not values:
                    raise ValueError("values = []: expected at least one number")
                total = list(values)
                values.clear()
                values = total
                return sum(values) / len(values)
        """,
        earns=40.0,
    ),
}
