"""Look up the flags that the labs name in released packages: `python scripts/check_flags.py FOLDER`.

`solutions/flags.json` lists the names by tool, each with the file of the release in which it stands. FOLDER holds
wheels or source archives of those tools, for example from `pip download --no-deps vllm sglang megatron-core
torchtitan`. With a newer release the script shows which names are gone. It prints a line per name that is missing, and
exits with 1 if there is one.
"""

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

FLAGS = Path(__file__).resolve().parent.parent / "solutions/flags.json"
_ARCHIVE = re.compile(r"(?P<package>[A-Za-z0-9_.]+?)-(?P<version>\d[^-]*?)(?:-.*\.whl|\.tar\.gz)")


def spelling(name: str) -> re.Pattern[str]:
    """Return a pattern of how a release declares a name: as a literal, or as the field that a flag is made from."""
    literal = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    if not name.startswith("--"):
        return re.compile(literal)
    field = re.escape(name.removeprefix("--").removeprefix("no-").split(".")[-1].replace("-", "_"))
    return re.compile(rf"{literal}|^\s*{field}\s*[:=]", re.MULTILINE)


def texts(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each Python file of a wheel or a source archive, without the latter's folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for path in wheel.namelist():
                if path.endswith(".py"):
                    yield path, wheel.read(path).decode(errors="replace")
        return
    with tarfile.open(archive) as source:
        for member in source:
            if member.name.endswith(".py") and (content := source.extractfile(member)) is not None:
                yield member.name.partition("/")[2], content.read().decode(errors="replace")


def missing(names: dict[str, str], archive: Path) -> Iterator[str]:
    """Yield a sentence for each name that does not stand in its file. It says if another file has it."""
    content = dict(texts(archive))
    for name, path in names.items():
        pattern = spelling(name)
        if not pattern.search(content.get(path, "")):
            others = [other for other, text in content.items() if pattern.search(text)]
            yield f"{name} is not in {path}" + (f", but in {others[0]}" if others else "")


def main(folder: Path) -> int:
    """Look up every tool whose package is in `folder`, and return the exit status."""
    archives = {match["package"].replace("_", "-"): (path, match["version"])
                for path in sorted(folder.iterdir()) if (match := _ARCHIVE.fullmatch(path.name))}  # fmt: skip
    count = 0
    for tool, release in json.loads(FLAGS.read_text(encoding="utf-8"))["tools"].items():
        if release["package"] not in archives:
            print(f"{tool}: no package {release['package']} in {folder}, skipped")
            continue
        archive, version = archives[release["package"]]
        faults = list(missing(release["names"], archive))
        count += len(faults)
        print(f"{tool} {version} (listed: {release['version']}): {len(release['names'])} names, {len(faults)} missing")
        for fault in faults:
            print(f"  {fault}")
    return int(count > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/check_flags.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
