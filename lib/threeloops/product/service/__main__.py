"""python -m threeloops.product.service: what `threeloops serve` does, without the course's command line."""

import argparse
import sys
from pathlib import Path

from threeloops.product.service.admission import KeysFileError
from threeloops.product.service.server import StartFailed, run
from threeloops.product.service.settings import SettingsError, load_settings

__all__ = ["main"]


def main() -> int:
    """Exit code: 0 after a signal, 2 if it could not start, which one sentence explains."""
    parser = argparse.ArgumentParser(prog="python -m threeloops.product.service", description=__doc__)
    parser.add_argument("--config", type=Path, help="a TOML file with settings")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--model")
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if name != "config" and value is not None}
    try:
        run(load_settings(options.config, given=given), lambda text: print(text, flush=True))
    except (SettingsError, KeysFileError, StartFailed) as error:
        print(f"threeloops serve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
