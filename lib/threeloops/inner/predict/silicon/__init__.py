"""The time of one kernel on one accelerator: physical terms, with a few constants fitted to published measurements.

Each kernel has a module with its formula and a dataclass of its constants. `fitted` returns the constants of a device,
and `python -m benchmarks silicon` fits them again, judges them on shapes that no fit has seen, and prints the errors.
Nothing is looked up in the tables at run time, so a shape may have any size. Layers of experts are in `experts`.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.predict.silicon.attention import (
        Decode,
        Prefill,
        UnsplitDecode,
        decode_constants,
        decode_seconds,
        prefill_seconds,
    )
    from threeloops.inner.predict.silicon.collectives import (
        CustomAllReduce,
        Ring,
        SwitchedRing,
        collective_seconds,
        custom_all_reduce_seconds,
    )
    from threeloops.inner.predict.silicon.constants import bounds, fitted, unidentified
    from threeloops.inner.predict.silicon.gemm import Gemm, QuantizingGemm, gemm_seconds
    from threeloops.inner.predict.silicon.host import StepHost
    from threeloops.inner.predict.silicon.latent import LatentDecode, latent_decode_seconds
    from threeloops.inner.predict.silicon.sheet import Sheet, sheet
else:
    import_on_demand(__name__)

__all__ = [
    "CustomAllReduce", "Decode", "Gemm", "LatentDecode", "Prefill", "QuantizingGemm", "Ring", "Sheet", "StepHost",
    "SwitchedRing", "UnsplitDecode", "bounds", "collective_seconds", "custom_all_reduce_seconds", "decode_constants",
    "decode_seconds", "fitted", "gemm_seconds", "latent_decode_seconds", "prefill_seconds", "sheet", "unidentified",
]  # fmt: skip
