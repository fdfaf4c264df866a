"""The labs use no flag of another tool that `solutions/flags.json` does not list, with the release that has it."""

import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_flags as lookup

LISTED = json.loads((ROOT / "solutions/flags.json").read_text(encoding="utf-8"))
TOOLS = LISTED["tools"]
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("solutions/*/*.py"))}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
HEADER = re.compile(rf"({'|'.join(TOOLS)}) (\d[\w.]*)")
QUOTED = re.compile(r"`([^`]+)`")


def tables(text):
    """Yield each table of the notes as rows of cells."""
    rows = []
    for line in (*text.splitlines(), ""):
        if line.startswith("# |"):
            rows.append([cell.strip() for cell in line[2:].strip().strip("|").split("|")])
        elif rows:
            yield rows
            rows = []


def columns(text):
    """Yield (tool, release, cell) for each cell of a column that is headed by a tool and its release."""
    for header, _, *rows in tables(text):
        for place, title in enumerate(header):
            if head := HEADER.match(title):
                for row in rows:
                    yield *head.groups(), row[place]


def name_of(quoted):
    """The name in a quotation such as `--speculative-algorithm EAGLE` or `"stage": 3`."""
    return quoted.split()[0].strip('":')


@pytest.mark.parametrize("source", SOURCES)
def test_every_flag_is_listed(source):
    known = {name for release in TOOLS.values() for name in release["names"]}
    known |= {name for names in LISTED["elsewhere"].values() for name in names}
    assert set(FLAG.findall(SOURCES[source])) <= known


@pytest.mark.parametrize("source", SOURCES)
def test_a_column_of_a_tool_has_its_names_and_its_release(source):
    for tool, version, cell in columns(SOURCES[source]):
        release = TOOLS[tool]
        assert f"{release['version']}.".startswith(f"{version}."), f"{tool} {version}: {release['version']} is listed"
        assert {name_of(quoted) for quoted in QUOTED.findall(cell)} <= set(release["names"]), cell


def test_tables_name_every_tool():
    """The pattern for headers finds the tables of the labs."""
    found = {(source[:2], tool) for source, text in SOURCES.items() for tool, _, _ in columns(text)}
    assert {("10", "DeepSpeed"), ("11", "SGLang"), ("12", "TorchTitan"), ("12", "Megatron-Core")} <= found
    assert {(lab, tool) for lab in ("11", "15", "16", "17") for tool in ("vLLM", "SGLang")} <= found


@pytest.mark.parametrize("tool", TOOLS)
def test_every_listed_name_is_used(tool):
    text = "\n".join(SOURCES.values())
    unused = [name for name in TOOLS[tool]["names"] if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
    assert not unused


NAMES = {
    "--max-seats": "tool/flags.py",
    "--no-cache": "tool/flags.py",
    "--section.some_degree": "tool/config.py",
    "plain_key": "tool/config.py",
}
RELEASE = {
    "tool/flags.py": 'add_argument("--max-seats", type=int)\nadd_argument("--cache")\n    cache: bool = True\n',
    "tool/config.py": 'class Config:\n    some_degree: int = 1\n    stage = {"plain_key": 3}\n',
    "tool/notes.txt": "--max-seats",
}


def wheel(folder, content):
    path = folder / "tool-2.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def source_archive(folder, content):
    path = folder / "tool-2.1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in content.items():
            member = tarfile.TarInfo(f"tool-2.1/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("pack", [wheel, source_archive])
def test_names_that_a_release_has_are_found(tmp_path, pack):
    assert list(lookup.missing(NAMES, pack(tmp_path, RELEASE))) == []


@pytest.mark.parametrize("pack", [wheel, source_archive])
@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("tool/flags.py", '"--max-seats"', '"--max-seats-per-step"', "--max-seats is not in tool/flags.py"),
        ("tool/flags.py", "    cache:", "    cached:", "--no-cache is not in tool/flags.py"),
        ("tool/config.py", "some_degree:", "degree:", "--section.some_degree is not in tool/config.py"),
        ("tool/config.py", "plain_key", "plain_keys", "plain_key is not in tool/config.py"),
    ],
)
def test_a_name_that_is_gone_is_reported(tmp_path, pack, path, old, new, message):
    changed = RELEASE | {path: RELEASE[path].replace(old, new)}
    assert list(lookup.missing(NAMES, pack(tmp_path, changed))) == [message]


def test_a_name_that_has_moved_is_reported_with_its_new_place(tmp_path):
    moved = {"tool/new.py" if path == "tool/flags.py" else path: text for path, text in RELEASE.items()}
    assert list(lookup.missing(NAMES, wheel(tmp_path, moved))) == [
        "--max-seats is not in tool/flags.py, but in tool/new.py",
        "--no-cache is not in tool/flags.py, but in tool/new.py",
    ]


def test_the_script_names_releases_and_fails_if_a_name_is_gone(tmp_path, monkeypatch, capsys):
    listed = {"tools": {"Tool": {"package": "tool", "version": "2.0", "names": NAMES}, "Other": {"package": "other"}}}
    monkeypatch.setattr(lookup, "FLAGS", tmp_path / "flags.json")
    lookup.FLAGS.write_text(json.dumps(listed))
    wheel(tmp_path, RELEASE)
    assert lookup.main(tmp_path) == 0
    assert "Tool 2.1 (listed: 2.0): 4 names, 0 missing" in capsys.readouterr().out
    wheel(tmp_path, RELEASE | {"tool/flags.py": ""})
    assert lookup.main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "Tool 2.1 (listed: 2.0): 4 names, 2 missing" in out
    assert f"Other: no package other in {tmp_path}, skipped" in out
