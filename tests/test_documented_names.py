"""Names of the library in the README and in docs/: each exists, and each import in a sentence works as it stands."""

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = "\n".join(path.read_text() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))
IMPORTS = sorted(set(re.findall(r"`(from threeloops[\w.]* import \w+)`", TEXT)))
MODULES = sorted(set(re.findall(r"`(threeloops(?:\.\w+)+)`", TEXT)))


@pytest.mark.parametrize("line", IMPORTS)
def test_an_import_in_a_sentence_works(line):
    exec(line, {})


@pytest.mark.parametrize("name", MODULES)
def test_a_dotted_name_can_be_imported_as_a_module(name):
    pkgutil.resolve_name(name + ":")


def test_replay_is_imported_as_the_labs_import_it():
    assert "from threeloops.lab import replay" in IMPORTS
