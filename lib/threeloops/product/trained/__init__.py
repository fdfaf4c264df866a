"""A model worth serving, trained by the course itself: `make model`, about a quarter of an hour on two cores.

>>> model = trained("tiny")          # comes with the library
>>> model = trained("model")         # after `make model`
>>> decode(generate(model, [encode("def main(")], Sampling(max_tokens=200))[0])
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.trained.models import trained
    from threeloops.product.trained.recipe import RECIPES, Recipe
    from threeloops.product.trained.text import SEPARATOR, decode, encode, standard_library
    from threeloops.product.trained.training import Row, held_out_loss, train
else:
    import_on_demand(__name__)

__all__ = [
    "RECIPES", "Recipe", "Row", "SEPARATOR", "decode", "encode", "held_out_loss", "standard_library", "train",
    "trained",
]  # fmt: skip
