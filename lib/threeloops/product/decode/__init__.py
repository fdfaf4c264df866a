"""Decoding, one token after another: caches of keys and values, sampling, speculation, CUDA graphs and export.

>>> generate(model, prompts, Sampling(max_tokens=20))              # one batch, a plain cache
>>> runner = ModelRunner(model, blocks=256, block_size=16)         # a paged cache, for an engine
>>> Engine(runner, BlockManager(256, 16)).run(requests)
>>> runner = SpeculativeRunner(model, ModelDraft(small), blocks=256, block_size=16)
>>> Engine(runner, BlockManager(256, 16), Policy(guesses=4)).run(requests)
>>> write_onnx(export_decode(model), path)
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.batching.blocks import BlockManager, OutOfBlocks
    from threeloops.product.decode.contiguous import (
        ContiguousCache,
        bytes_per_token,
        contiguous_waste,
        generate,
        paged_waste,
    )
    from threeloops.product.decode.export import export_decode, export_prefill, write_onnx
    from threeloops.product.decode.feature_head import FeatureHead, Speculated, speculate
    from threeloops.product.decode.graphs import DecodeGraphs
    from threeloops.product.decode.paged import PagedCache, Rows
    from threeloops.product.decode.runner import ModelRunner, NotFinite
    from threeloops.product.decode.sampling import choose, draw, probabilities
    from threeloops.product.decode.speculative import (
        Draft,
        Guess,
        LookupDraft,
        ModelDraft,
        SpeculativeRunner,
        accept,
        expected_speedup,
        expected_tokens,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "BlockManager", "ContiguousCache", "DecodeGraphs", "Draft", "FeatureHead", "Guess", "LookupDraft", "ModelDraft",
    "ModelRunner", "NotFinite", "OutOfBlocks", "PagedCache", "Rows", "Speculated", "SpeculativeRunner", "accept",
    "bytes_per_token", "choose", "contiguous_waste", "draw", "expected_speedup", "expected_tokens", "export_decode",
    "export_prefill", "generate", "paged_waste", "probabilities", "speculate", "write_onnx",
]  # fmt: skip
