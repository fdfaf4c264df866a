"""Generator of docs/model_variants.md, the table of variants and consumers: `python tests/variants/table.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # pytest has it already

from consumers import CONSUMERS
from model_variants import VARIANTS, variant_config
from threeloops.models.gpt_config import GPTConfig

__all__ = ["PAGE", "REFUSED", "written"]

PAGE = Path(__file__).parents[2] / "docs/model_variants.md"

_WINDOWS = ("window", "window of two", "biases and window", "norms and window")
_FILES = ("gguf", "llama_cpp")
_REFUSALS: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (("tensor_parallel",), ("one key head",), "kv_heads = 1 cannot be cut over 2 ranks"),
    (
        ("tensor_parallel",),
        ("odd vocabulary", "odd vocabulary, tied"),
        "embedding: dimension 0 of shape (61, 64) cannot be cut into 2 equal parts",
    ),
    (("ring_attention",), _WINDOWS, "ring attention sees all earlier keys; use a model without a window"),
    (_FILES, _WINDOWS, "llama.cpp attends to all tokens in models of this shape"),
    (_FILES, ("narrow heads",), "head_dim = 8 with qkv_bias: llama.cpp's 'qwen2' expects width / heads = 16"),
    (_FILES, ("yarn positions, all set",), "beta_fast = 8.0 in YarnScaling: llama.cpp computes with 32.0"),
]
"""Consumers, the variants that they refuse, and a part of the error. In all other cells the result is as expected."""

REFUSED = {
    (consumer, variant): number
    for number, (consumers, variants, _) in enumerate(_REFUSALS, 1)
    for consumer in consumers
    for variant in variants
}
"""The number of the refusal, by consumer and variant."""

_HEAD = """# Model variants, and the parts of the library that support them

One class, `GPT`, computes the architectures of Llama, Mistral, Qwen2 and Qwen3. The rows of the table are variants of
that class. The columns are its consumers: llama.cpp, and the parts of the library that take such a model. Every cell
is tested. In {equal} of {cells} cells the result equals the reference named under [Consumers](#consumers). In the
other {refused} cells the model is refused with an error. `tests/lib/models/test_variants.py` compares the forward pass
of each variant with transformers.

- **=**: the result equals the reference, within the tolerance under [Consumers](#consumers).
- **A number**: the model is refused with an error. [Refusals](#refusals) quotes a part of the error.

"""

_BASE = """The first variant, `llama`, has a vocabulary of 64 tokens, 2 layers, 4 heads, 2 key/value heads and width 64.
Some consumers are tested with 1 layer, which takes less time.

"""

_TAIL = """
`python tests/variants/table.py` generates this page. To add a variant, add it to `tests/support/model_variants.py`. To
add a consumer, write a function in `tests/variants/consumers.py`. Then run that command again.
"""


def words(number: int) -> str:
    """Return the quoted part of the error of a refusal."""
    return _REFUSALS[number - 1][2]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _differences(name: str) -> str:
    """List the fields of a variant's configuration that differ from the first variant's."""
    config, plain = variant_config(name), variant_config(next(iter(VARIANTS)))
    fields = (field for field in vars(GPTConfig(**vars(config))) if getattr(config, field) != getattr(plain, field))
    return ", ".join(f"`{field}={getattr(config, field)}`" for field in fields) or "—"


def written() -> str:
    """Generate the page."""
    cells = len(VARIANTS) * len(CONSUMERS)
    parts = [_HEAD.format(cells=cells, refused=len(REFUSED), equal=cells - len(REFUSED))]
    parts += [_row("variant", *(consumer.title for consumer in CONSUMERS.values()))]
    parts += [_row("---", *["---"] * len(CONSUMERS))]
    for variant in VARIANTS:
        found = [str(REFUSED.get((consumer, variant), "=")) for consumer in CONSUMERS]
        parts.append(_row(variant, *found))
    parts += ["\n## Variants\n\n", _BASE, _row("variant", "differs from the first in"), _row("---", "---")]
    parts += [_row(variant, _differences(variant)) for variant in VARIANTS]
    parts += ["\n## Consumers\n\n", _row("consumer", "what the test does", "tolerance"), _row(*["---"] * 3)]
    for consumer in CONSUMERS.values():
        within = f"{consumer.within:.0e}".replace("e-0", "e-") if consumer.within else "0"
        parts.append(_row(consumer.title, consumer.what.rstrip("."), within))
    parts += ["\n## Refusals\n\n", *(f"{number}. “{text}”\n" for number, (*_, text) in enumerate(_REFUSALS, 1))]
    return "".join(parts) + _TAIL


def main() -> None:
    PAGE.write_text(written(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
