"""python -m threeloops.product.service: the same as `threeloops serve`, without the course's command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from threeloops.product.service.admission import KeysFileError
from threeloops.product.service.server import StartFailed, run
from threeloops.product.service.settings import SettingsError, add_flags, load_settings

__all__ = ["main"]

_ABOUT = """\
Serve a model to the openai client, curl and everything else that speaks OpenAI's protocol. Ctrl-C drains and ends it.
Settings come from the file, then from THREELOOPS_SERVE_… in the environment, then from the flags; the last one wins.\
"""


def main(words: Sequence[str] | None = None) -> int:
    """Serve, as the command line says. Exit code: 0 after a signal, 2 if it could not start, with one sentence."""
    parser = argparse.ArgumentParser(
        prog="threeloops serve",
        usage="threeloops serve [--config FILE] [--SETTING VALUE …]",
        description=_ABOUT,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, help="a TOML file with settings", metavar="FILE")
    add_flags(parser)
    options = vars(parser.parse_args(words))
    config = options.pop("config")
    given = {name: text for name, text in options.items() if text is not None}
    try:
        run(load_settings(config, given=given), lambda text: print(text, flush=True))
    except (SettingsError, KeysFileError, StartFailed) as error:
        print(f"threeloops serve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
