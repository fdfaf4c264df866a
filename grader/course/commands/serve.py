"""`threeloops serve`: a model behind OpenAI's protocol, until Ctrl-C or SIGTERM."""

from pathlib import Path
from typing import Annotated

import typer

from grader.machine.faults import MachineFault

__all__ = ["serve"]


def serve(
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; by default this machine only.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 for one that is free, 8000 by default.")] = None,
    model: Annotated[str | None, typer.Option(help="A model of the course, or a folder of weights.")] = None,
) -> None:
    """Serve a model to the openai client, curl and whoever else speaks OpenAI's protocol. Ctrl-C drains and ends it.

    Settings come from the file, then from THREELOOPS_SERVE_… in the environment, then from these options; the last
    one wins. `threeloops.product.service.settings` lists them all.
    """
    from threeloops.product.service.admission import KeysFileError
    from threeloops.product.service.server import StartFailed, run
    from threeloops.product.service.settings import SettingsError, load_settings

    options = {"host": host, "port": port, "model": model}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        run(load_settings(config, given=given), lambda text: print(text, flush=True))
    except (SettingsError, KeysFileError, StartFailed) as error:
        raise MachineFault(str(error)) from None
