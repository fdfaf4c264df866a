"""Which release of Triton runs the tests, for kernels that use what another one has removed."""

from importlib.metadata import version

import pytest

__all__ = ["BLOCK_POINTERS", "RELEASE"]

RELEASE = tuple(map(int, version("triton").split(".")[:2]))
"""Without importing Triton, which some tests do only after they have set up its interpreter."""

BLOCK_POINTERS = pytest.mark.skipif(RELEASE >= (3, 9), reason="Triton 3.9 removed block pointers")
