"""The program `threeloops`.

The commands of the library work in every installation. The course has a program with these and its own commands. It
runs instead of this one if the extra that it needs is installed.
"""

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from threeloops import EXTRAS, __version__
from threeloops.commands.cluster import cluster
from threeloops.commands.faults import CommandError
from threeloops.commands.plan import plan
from threeloops.commands.serve import serve

__all__ = ["CLUSTER_SETTINGS", "SERVE_SETTINGS", "add_version", "main"]

SERVE_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The service parses its own flags, also --help."""
CLUSTER_SETTINGS = {"allow_interspersed_args": False}
"""Options after the script's name are the script's."""

_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Three Loops: a library for AI infrastructure, from one kernel to a serving fleet.",
    epilog=escape('The commands of the course (lab, check, grade, …) come with pip install "threeloops[labs]".'),
)


def main() -> None:
    """Run the program of the course if its packages are installed, else that of the library."""
    for program in entry_points(group="threeloops.programs"):
        if all(find_spec(package) for package in EXTRAS[program.name].split()):
            program.load()()
            return
    _app()


def _fail(message: str) -> NoReturn:
    """Print one sentence on stderr and end with exit code 2."""
    Console(stderr=True).print(f"[bold red]threeloops:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _command(function: Callable[..., None], **settings: object) -> None:
    """Register a command. A fault that its user can mend ends it with one sentence and exit code 2."""

    @functools.wraps(function)
    def guarded(*args: object, **kwargs: object) -> None:
        try:
            function(*args, **kwargs)
        except CommandError as error:
            _fail(str(error))
        except ModuleNotFoundError as error:
            if "pip install" not in str(error):
                raise
            _fail(str(error))
        except OSError as error:
            _fail(f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}")
        except KeyboardInterrupt:
            _fail("stopped")

    _app.command(context_settings=settings or None)(guarded)


_command(serve, **SERVE_SETTINGS)
_command(plan)
_command(cluster, **CLUSTER_SETTINGS)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"threeloops {__version__}")
        raise typer.Exit(0)


def add_version(app: typer.Typer) -> None:
    """Give a program the option --version."""

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
        ] = False,
    ) -> None:
        pass


add_version(_app)


if __name__ == "__main__":
    main()
