"""Choose the next token from logits.

`adjusting.py` changes the logits as a request demands, `draws.py` draws a token from them, and `logprobs.py` records
how likely the token was.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.decode.sampling.adjusting import Adjuster
    from threeloops.product.decode.sampling.draws import choose, draw, probabilities, uniforms
    from threeloops.product.decode.sampling.logprobs import note_logprobs, note_prompt_logprobs
else:
    import_on_demand(__name__)

__all__ = ["Adjuster", "choose", "draw", "note_logprobs", "note_prompt_logprobs", "probabilities", "uniforms"]
