"""`threeloops serve`: serve a model with OpenAI's protocol, until Ctrl-C or SIGTERM."""

import typer

__all__ = ["serve"]


def serve(context: typer.Context) -> None:
    """Serve a model to the openai client, curl and everything else that speaks OpenAI's protocol.

    The service has its own flags, one per setting: see `threeloops serve --help`.
    """
    from threeloops.product.service.__main__ import main

    raise typer.Exit(main(context.args))
