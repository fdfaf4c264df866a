"""A kernel launch that never happened, described argument by argument: what a compiler test varies."""

from threeloops.inner.codegen.kernel_source import KernelText, _undecorated
from threeloops.inner.launches import Launch, TensorArgument


def described_launch(kernel, arguments, constants=None, **options):
    """`arguments`: numbers, or pointers as text: "*float16" is aligned to 16 bytes, "*float16:2" to 2."""
    described = {name: pointer(value) if isinstance(value, str) else value for name, value in arguments.items()}
    name = kernel.name if isinstance(kernel, KernelText) else _undecorated(kernel)[2].__name__
    where = {"module": "", "file": "", "line": 0}
    return Launch(name, (1, 1, 1), described, constants or {}, options, kernel=kernel, **where)


def pointer(text):
    dtype, _, alignment = text.removeprefix("*").partition(":")
    return TensorArgument(dtype, (1,), (1,), 0, 0, 1, int(alignment or 16))
