"""LibreOffice and poppler, which read a plan's documents as a person's own programs would."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_ALWAYS_RECALCULATE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse">
<value>0</value></prop></item></oor:items>
"""


class Office:
    """Converts files without a display, in a profile of its own; workbooks are calculated again on loading."""

    def __init__(self, folder: Path) -> None:
        self.profile = folder / "profile"
        (self.profile / "user").mkdir(parents=True)
        (self.profile / "user/registrymodifications.xcu").write_text(_ALWAYS_RECALCULATE)

    def convert(self, kind: str, folder: Path, *files: Path) -> dict[str, Path]:
        """`kind` is what to convert to. Returns the new files by the names of the old ones."""
        command = [
            _program("soffice", "libreoffice-calc-nogui libreoffice-impress-nogui libreoffice-writer-nogui"),
            f"-env:UserInstallation={self.profile.as_uri()}", "--headless", "--convert-to", kind, "--outdir", folder,
        ]  # fmt: skip
        done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=240)
        found = {file.name: folder / f"{file.stem}.{kind}" for file in files}
        assert all(path.exists() for path in found.values()), done.stdout + done.stderr
        return found


def pages(pdf: Path) -> int:
    said = subprocess.run([_program("pdfinfo", "poppler-utils"), pdf], capture_output=True, text=True, timeout=60)
    return int(re.search(r"Pages:\s+(\d+)", said.stdout)[1])


def text(pdf: Path) -> str:
    """All text, with runs of white space as one space."""
    command = [_program("pdftotext", "poppler-utils"), "-layout", pdf, "-"]
    return " ".join(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split())


def words_outside(pdf: Path, margin: float = 10.0) -> list[str]:
    """Words that are not on their page, or less than `margin` points from its edge."""
    command = [_program("pdftotext", "poppler-utils"), "-bbox", pdf, "-"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    width = height = 0.0
    found = []
    for line in said.splitlines():
        numbers = {name: float(value) for name, value in re.findall(r'(\w+)="([\d.-]+)"', line)}
        if "<page" in line:
            width, height = numbers["width"], numbers["height"]
        elif "<word" in line:
            across = margin <= numbers["xMin"] and numbers["xMax"] <= width - margin
            if not across or numbers["yMin"] < margin or numbers["yMax"] > height - margin:
                found.append(line)
    return found


def _program(name: str, packages: str) -> str:
    """Where it is. Skips the test if it is not installed; THREELOOPS_CI turns the skip into a failure."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here: apt install {packages}")
    return found
