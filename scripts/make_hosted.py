"""The labs for Colab and Kaggle: `python scripts/make_hosted.py OWNER/NAME FOLDER`.

FOLDER gets every notebook of `labs/` with one more cell, which installs the course from the wheel beside it, and a
README with a button per notebook. It belongs on the branch `colab` of that repository on GitHub, where the buttons and
the cell expect it; `.github/workflows/colab.yml` puts it there. Needs Python and pip, none of the course's packages.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "colab"
INSTALL = """\
# This machine is gone when you leave it: save a copy of the notebook first (File menu), which keeps your answers.
%pip install --quiet "threeloops[labs] @ https://raw.githubusercontent.com/{repository}/{branch}/{wheel}"
!threeloops start {lab}
%cd work/{lab}
"""
README = """\
# The labs on Colab and Kaggle

A button opens a notebook on a machine of Google's, in your browser; an account there is all you need. Run the first
code cell: it installs the course, and takes a minute or two. No GPU is needed.

| notebook | question | | |
|---|---|---|---|
{rows}
"""
ROW = (
    "| {name} | {question} "
    "| [Open in Colab](https://colab.research.google.com/github/{repository}/blob/{branch}/{name}.ipynb) "
    "| [Open in Kaggle](https://kaggle.com/kernels/welcome"
    "?src=https://github.com/{repository}/blob/{branch}/{name}.ipynb) |"
)


def main(repository: str, folder: str) -> int:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        print(f"repository = {repository!r}: expected OWNER/NAME, as in its address on GitHub")
        return 2
    made = Path(folder)
    if made.exists() and any(made.iterdir()):
        print(f"{folder} is not empty: name a new folder, or delete this one")
        return 2
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
    if done := subprocess.run(wheel).returncode:
        return done
    (built,) = made.glob("*.whl")
    rows = []
    for path in sorted((ROOT / "labs").glob("*/*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        lab, name = path.parent.name, path.stem
        install = INSTALL.format(repository=repository, branch=BRANCH, wheel=built.name, lab=lab)
        notebook["cells"].insert(1, code_cell("install", install))
        (made / path.name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        question = "".join(notebook["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
        rows.append(ROW.format(repository=repository, branch=BRANCH, name=name, question=question))
    (made / "README.md").write_text(README.format(rows="\n".join(rows)), encoding="utf-8")
    print(f"{folder}: {len(rows)} notebooks and {built.name}")
    return 0


def code_cell(name: str, source: str) -> dict[str, object]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [],
        "source": source.rstrip().splitlines(keepends=True),
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
