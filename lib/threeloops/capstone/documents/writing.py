"""Write either all of a plan's documents or none."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path

from threeloops.capstone.documents.contents import document
from threeloops.capstone.documents.formats.outline import Document, Picture
from threeloops.capstone.plan import Plan
from threeloops.files import replacing

__all__ = ["FORMATS", "write"]

FORMATS = ("md", "docx", "xlsx", "pdf", "pptx")
_STEM = "plan"


def write(plan: Plan, folder: Path | str, formats: Sequence[str] = FORMATS, *, date: str = "") -> tuple[Path, ...]:
    """Write `plan.md`, `plan.docx`, ... and the figures that plan.md shows into `folder`, which is created if needed.

    Nothing is replaced before everything is on the disk, so a failure leaves earlier files unchanged.

    Args:
        date: the date of the plan, as it is to be printed.

    Returns:
        The documents in the order of `formats`, then the figures.

    Raises:
        ValueError: a format is not one of `FORMATS`, or there is none.
        OSError: `folder` cannot be created or written, or the disk is full.
    """
    chosen = _checked(formats)
    renderers = {kind: _renderer(kind) for kind in chosen}
    outline = document(plan, date)
    contents = {f"{_STEM}.{kind}": render(outline) for kind, render in renderers.items()}
    if "md" in chosen:
        pictures = [block for section in outline.sections for block in section.blocks if isinstance(block, Picture)]
        contents |= {f"{_STEM}-{picture.name}.png": picture.png for picture in pictures}
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        _replace({place / name: data for name, data in contents.items()})
    except OSError as error:
        what = f"the plan could not be written into {place} ({error.strerror or error}); no file was changed. Expected"
        raise OSError(error.errno, f"{what} a folder that may be written, with {_megabytes(contents)} free") from error
    return tuple(place / name for name in contents)


def _checked(formats: Sequence[str]) -> tuple[str, ...]:
    if isinstance(formats, str):
        raise ValueError(f"formats = {formats!r}: expected a sequence, such as ({formats!r},)")
    for name in formats:
        if name not in FORMATS:
            close = get_close_matches(str(name).lower(), FORMATS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"format {name!r}: {hint}expected one of {', '.join(FORMATS)}")
    if not formats:
        raise ValueError(f"formats = {formats!r}: expected at least one of {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(formats))


def _renderer(kind: str) -> Callable[[Document], bytes]:
    """Return the renderer of one format. Each format's library is loaded only if it is used."""
    match kind:
        case "md":
            from threeloops.capstone.documents.formats.markdown import render
        case "docx":
            from threeloops.capstone.documents.formats.word import render
        case "xlsx":
            from threeloops.capstone.documents.formats.workbook import render
        case "pdf":
            from threeloops.capstone.documents.formats.pdf import render
        case _:
            from threeloops.capstone.documents.formats.slides import render
    return render


def _replace(contents: dict[Path, bytes]) -> None:
    with ExitStack() as files:
        streams = [(files.enter_context(replacing(path)), data) for path, data in contents.items()]
        for stream, data in streams:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())  # a full disk is met here, while the old files are all in place


def _megabytes(contents: dict[str, bytes]) -> str:
    return f"{sum(map(len, contents.values())) / 1e6:.1f} MB"
