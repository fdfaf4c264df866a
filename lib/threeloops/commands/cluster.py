"""`threeloops cluster`: run a distributed script on the virtual cluster, and report its messages and its time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from threeloops.commands.faults import CommandError

if TYPE_CHECKING:
    from threeloops.training.cluster import Run

__all__ = ["cluster"]

_PICTURES = (".svg", ".png", ".pdf")


def cluster(
    script: Annotated[str, typer.Argument(help="A Python script, or with -m the name of a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", help="How many; 2 if no topology is named.")] = None,
    topology: Annotated[
        str | None,
        typer.Option(help="'8 x H100 SXM', '2 x 8 x H100 SXM' (nodes x ranks), '8 x L40S, PCIe'; by default 1 GB/s."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    gantt: Annotated[Path | None, typer.Option(help="Write the Gantt chart to this .svg, .png or .pdf file.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev to this .json file.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="An interpreter and a hash seed for each rank.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="Real seconds that the run may take.")] = 600,
) -> None:
    """Run a torch.distributed script on virtual ranks: real values, exact bytes, and the time of a network.

    The script runs unchanged, as under torchrun. Options of this command come before its name. Exits 1 if it failed.
    """
    if gantt is not None:
        import matplotlib  # noqa: F401 (if it is missing, say so before the run)

    from threeloops.training.cluster import Cluster, ClusterError, read_topology
    from threeloops.training.cluster import script as program

    if gantt is not None and gantt.suffix not in _PICTURES:
        raise CommandError(f"--gantt {gantt}: expected a name that ends in {', '.join(_PICTURES)}")
    for option, path in (("--gantt", gantt), ("--trace", trace)):
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(f"{option} {path}: there is no folder {path.absolute().parent}")
    try:
        chosen = read_topology(topology or f"{2 if ranks is None else ranks} ranks", ranks)
        task = program(script, *(arguments or ()), module=module)
    except (ValueError, LookupError) as error:
        raise CommandError(str(error.args[0])) from None
    console = Console(highlight=False)
    try:
        run = Cluster(chosen, fresh=fresh).run(task, seconds=seconds)
    except ClusterError as error:
        for printed in getattr(error, "__notes__", ()):
            print(printed)
        Console(stderr=True, highlight=False).print(
            f"[bold red]{type(error).__name__}:[/] {escape(str(error))}", soft_wrap=True
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise CommandError("stopped: the script had not ended, and its ranks are gone") from None
    if run.printed:
        print(run.printed)
    _show(run, console)
    if gantt is not None:
        from threeloops.training.cluster.pictures import gantt as draw

        draw(run).savefig(gantt)
        console.print(f"wrote {gantt}", markup=False, soft_wrap=True)
    if trace is not None:
        from threeloops.training.cluster.pictures import write_trace

        write_trace(run, trace)
        console.print(f"wrote {trace}: open it in ui.perfetto.dev", markup=False, soft_wrap=True)


def _show(run: "Run", console: Console) -> None:
    """Print the end of the run, and each rank's computation, communication and sent bytes."""
    from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
    from threeloops.units import readable_bytes, readable_seconds

    title = f"{run.topology.name}: {readable_seconds(run.seconds)} of virtual time, {len(run.messages):,} messages"
    table = Table("rank", title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("ends at", "computes", "in collectives", "collectives", "sends"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank, row in enumerate(run.bytes):
        spans = [span for span in run.spans if span.rank == rank]
        busy = [
            sum(span.end - span.start for span in spans if span.timeline == timeline)
            for timeline in (COMPUTE, COMMUNICATION)
        ]
        count = sum(span.timeline == COMMUNICATION for span in spans)
        times = map(readable_seconds, (run.clocks[rank], *busy))
        table.add_row(str(rank), *times, str(count), readable_bytes(sum(row)))
    console.print(table)
    if all(span.timeline == COMMUNICATION for span in run.spans):
        console.print(
            "The script charged no time for computing. To charge it call threeloops.training.cluster.compute(seconds); "
            "on real processes it sleeps.",
            soft_wrap=True,
        )
