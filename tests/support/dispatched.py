"""The operators that torch dispatches, for tests of which ones run."""

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Notes the names of the operators that run, in their order."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def count(self, *names):
        return sum(name in names for name in self.names)

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.names.append(operator.name())
        return operator(*arguments, **(named or {}))
