"""From logits to the next token: `adjusting.py` changes logits by what a request asks for, `draws.py` draws from them,
and `logprobs.py` reports how likely the tokens were.
"""

from threeloops.product.decode.sampling.adjusting import Adjuster
from threeloops.product.decode.sampling.draws import choose, draw, probabilities, uniforms
from threeloops.product.decode.sampling.logprobs import note_logprobs

__all__ = ["Adjuster", "choose", "draw", "note_logprobs", "probabilities", "uniforms"]
