"""python -m threeloops.product.trained: train the models that are not here yet (`make model`)."""

import argparse
import sys
from pathlib import Path

import torch

from threeloops.product.trained.models import export, fingerprint, folder_of, from_checkpoints
from threeloops.product.trained.recipe import RECIPES
from threeloops.product.trained.text import standard_library
from threeloops.product.trained.training import Row, read_curve, train


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m threeloops.product.trained", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(RECIPES)}; by default model and draft")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="also write NAME.safetensors there, in float16")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in RECIPES]:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(RECIPES)}")
    text = standard_library()
    for name in options.names or ("model", "draft"):
        recipe = RECIPES[name]
        folder = folder_of(name)
        folder.mkdir(parents=True, exist_ok=True)
        seen = recipe.steps * recipe.batch * recipe.sequence
        print(
            f"{name}: {recipe.config.parameters_count():,} parameters, {recipe.steps} steps over {seen / 1e6:.1f} "
            f"million bytes, in {folder}",
            flush=True,
        )
        train(recipe, text, folder, device=options.device, report=_show)
        last = read_curve(folder)[-1]
        print(f"{name}: {last.held_out:.3f} nats per byte held out, after {last.seconds / 60:.1f} minutes", flush=True)
        if options.export:
            options.export.mkdir(parents=True, exist_ok=True)
            about = {"loss": f"{last.held_out:.4f}", "fingerprint": fingerprint(recipe, text[0])}
            export(from_checkpoints(name), options.export / f"{name}.safetensors", about)
    return 0


def _show(row: Row) -> None:
    print(
        f"  step {row.step:5}  train {row.train:.3f}  held out {row.held_out:.3f}  rate {row.rate:.1e}  "
        f"{row.seconds:5.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(_main())
