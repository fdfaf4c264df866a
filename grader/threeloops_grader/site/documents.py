"""The pages beside the labs: the repository's own documents, at their own places, so that links between them work."""

import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from threeloops.lab.course import loops

from threeloops_grader.authoring.labs import LabError, course_root
from threeloops_grader.site import api
from threeloops_grader.site.notebooks import LabPage

__all__ = ["colab_links", "edit_links", "write_documents"]

_FRONT = "docs/site/index.md"
"""The front page. Marks in it are replaced: parts of the README (`_OF_README`), `<!-- explorer: STEM N -->`,
`<!-- labs -->` and `<!-- contents -->`."""
_DOCUMENTS = {
    "Learn": {
        "labs/course.md": "Course map",
        "labs/glossary.md": "Glossary",
        "docs/learning.md": "",
        "docs/install.md": "",
    },
    "Evidence": {
        "benchmarks/README.md": "Measurements",
        "benchmarks/GPU.md": "Measurements on GPUs",
        "docs/predictions.md": "Predicted times",
        "claims.md": "Claims",
        "docs/what_runs.md": "",
        "docs/power_cuts.md": "",
        "docs/model_variants.md": "",
    },
    "Teach": {
        "docs/teaching/README.md": "Run a class",
        "docs/teaching/assistants.md": "",
        "SECURITY.md": "The sandbox",
    },
    "Library": {
        "docs/library.md": "Use the library",
        "docs/examples.md": "Examples",
        "docs/serving.md": "",
        "docs/planning.md": "",
        "docs/ci.md": "",
    },
    "Design": {
        "docs/design/README.md": "The code",
        "docs/design/wall.md": "",
        "docs/design/replay.md": "",
        "docs/design/virtual_time.md": "",
        "docs/design/feedback.md": "",
        "CONTRIBUTING.md": "Contributing",
        "CHANGELOG.md": "Changelog",
    },
}
"""The documents by the caption of their list, with the name in the list if it is not the title. Other documents of
`docs/` follow in the list of their folder."""
_LISTS = {"docs": "Library", "docs/teaching": "Teach", "docs/design": "Design"}
_LINK = re.compile(
    r"(?P<picture>!?)\[(?P<text>(?:[^\[\]`]|`[^`]*`|!?\[[^\]]*\](?:\([^)]*\))?)*)\]\((?P<target>[^()\s]+)\)"
)
_OF_README = {
    "promise": re.compile(r"^\*\*Learn .*?(?=\n\n)", re.MULTILINE | re.DOTALL),
    "picture": re.compile(r"^!\[[^]]*\]\(\.github/images/\w+\.gif\)", re.MULTILINE),
    "introduction": re.compile(r"^For engineers .*?(?=\s+Clone this)", re.MULTILINE | re.DOTALL),
    "loops": re.compile(r"^\| Inner loop.*?(?=\n\n)", re.MULTILINE | re.DOTALL),
}
"""Parts of the README that the front page repeats, by their marks."""
_FENCE = re.compile(r"^(```|~~~)", re.MULTILINE)
_OUTSIDE = re.compile(r"[a-z][a-z+.-]*:|#|//")
_MARK = re.compile(r"<!-- explorer: (\w+) (\d+) -->")


def write_documents(pages: Sequence[LabPage], source: Path, reports: Path, *, api_pages: bool = True) -> None:
    """Write all pages but the labs into `source`.

    `reports` has the claims that `make course` wrote. Raises LabError if they or a document are missing.
    """
    root = course_root()
    lists = _lists(root)
    texts = {name: _read(root / name) for names in lists.values() for name in names if name != "claims.md"}
    texts["claims.md"] = _read(reports / "claims.md")
    texts["labs/course.md"] = _with_links(texts["labs/course.md"], pages)
    library = api.write(source) if api_pages else []
    of_site = {"index.md", *texts, *(_document(page) for page in pages)}
    linked = {name: _linked(text, name, name, of_site, source) for name, text in texts.items()}
    front = _linked(_read(root / _FRONT), _FRONT, "index.md", of_site, source)
    readme = _read(root / "README.md")
    for mark, part in _OF_README.items():
        if (repeated := part.search(readme)) is None:
            raise LabError(f"README.md has no {mark} that the site's front page could show")
        front = front.replace(f"<!-- {mark} -->", _linked(repeated[0], "README.md", "index.md", of_site, source))
    linked["index.md"] = _front(front, pages, lists, library)
    for name, text in linked.items():
        place = source / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def edit_links(pages: Iterable[str]) -> dict[str, str]:
    """Return the address where each page's source is edited, by its page, or nothing if no repository is named."""
    repository = os.environ.get("THREELOOPS_REPOSITORY", "")
    if not repository:
        return {}
    files = {name: _source_of(name) for name in pages}
    return {name: f"{repository}/edit/main/{file}" for name, file in files.items() if file}


def _source_of(page: str) -> str:
    """Return the file that a page is written from, or "" if a command writes it."""
    folder, _, name = page.rpartition("/")
    candidates = (
        [f"{folder.replace('labs/', 'solutions/')}/{name}.py"] if folder.startswith("labs/") else [f"{page}.md"]
    )
    if page == "index":
        candidates = [_FRONT]
    return next((file for file in candidates if (course_root() / file).is_file()), "")


def colab_links(stems: Iterable[str]) -> dict[str, str]:
    """Return the address that opens each notebook in Colab, by its page, or nothing if no repository is named."""
    repository = os.environ.get("THREELOOPS_REPOSITORY", "")
    if not repository.startswith("https://github.com/"):
        return {}
    address = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
    return {f"labs/{stem.removesuffix('_dives')}/{stem}": f"{address}/blob/colab/{stem}.ipynb" for stem in stems}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        how = ": `make course` writes it" if path.name == "claims.md" else ""
        raise LabError(f"{path} is missing{how}") from None


def _document(page: LabPage) -> str:
    return f"labs/{page.lab.slug}/{page.lab.stem}.ipynb"


def _name(page: LabPage) -> str:
    """Return a lab's name as on the map of the course."""
    titles = {lab.number: lab.title for lab in loops.labs()}
    return f"{page.lab.number:02} · {titles.get(page.lab.number, page.lab.title)}"


def _with_links(text: str, pages: Sequence[LabPage]) -> str:
    """Return the map of the course, in which each lab's name is a link to its page."""
    for page in pages:
        if not page.lab.dives:
            link = _document(page).removeprefix("labs/")
            text = text.replace(f"| {_name(page)} |", f"| [{_name(page)}]({link}) |")
    return text


def _lists(root: Path) -> dict[str, dict[str, str]]:
    """Return the documents by the caption of their list, those included that `_DOCUMENTS` does not name."""
    lists = {caption: dict(names) for caption, names in _DOCUMENTS.items()}
    listed = {name for names in lists.values() for name in names}
    for folder, caption in _LISTS.items():
        names = sorted(path.relative_to(root).as_posix() for path in (root / folder).glob("*.md"))
        lists[caption] |= {name: "" for name in names if name not in listed}
    return lists


def _front(
    text: str, pages: Sequence[LabPage], documents: Mapping[str, Mapping[str, str]], library: Sequence[str]
) -> str:
    by_stem = {page.lab.stem: page for page in pages}

    def explorer(mark: re.Match[str]) -> str:
        page = by_stem.get(mark[1])
        number = int(mark[2])
        return f"\n{page.explorers[number - 1]}\n" if page is not None and len(page.explorers) >= number else ""

    rows = [f"- [{_name(page)}]({_document(page)})" for page in pages if not page.lab.dives]
    text = _MARK.sub(explorer, text).replace("<!-- labs -->", "\n".join(rows))
    lists = [("Labs", [(_name(page) + (" · dives" if page.lab.dives else ""), _document(page)) for page in pages])]
    lists += [(caption, [(title, name) for name, title in names.items()]) for caption, names in documents.items()]
    if library:
        lists.append(("API", [("", name) for name in library]))
    lists.insert(0, lists.pop(1))
    return text.replace("<!-- contents -->", "\n\n".join(_contents(*listed) for listed in lists))


def _contents(caption: str, entries: Sequence[tuple[str, str]]) -> str:
    lines = [f"{title} <{name}>" if title else name for title, name in entries]
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *lines, "```"])


def _linked(text: str, name: str, page: str, of_site: set[str], source: Path) -> str:
    """Return a document whose links lead to pages of the site, or to files of the repository, outside of code.

    `name` is its place in the repository, and `page` its place in the site.
    """
    parts = _FENCE.split(text)
    inside = False
    for at, part in enumerate(parts):
        if at % 2:
            inside = not inside
        elif not inside:
            parts[at] = _LINK.sub(lambda link: _link(link, name, page, of_site, source), part)
    return "".join(parts)


def _link(link: re.Match[str], name: str, page: str, of_site: set[str], source: Path) -> str:
    text = _LINK.sub(lambda inner: _link(inner, name, page, of_site, source), link["text"])
    path, _, anchor = link["target"].partition("#")
    if _OUTSIDE.match(link["target"]):
        return f"{link['picture']}[{text}]({link['target']})"
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    file = course_root() / place
    here = posixpath.dirname(page) or "."
    if link["picture"] and file.is_file():
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, source / place)
        return f"![{text}]({posixpath.relpath(place, here)})"
    to = {"README.md": "index.md"}.get(place, place)
    to = f"{to}/README.md" if f"{to}/README.md" in of_site else to
    end = f"#{anchor}" if anchor else ""
    if to in of_site:
        return f"[{text}]({posixpath.relpath(to, here)}{end})"
    repository = os.environ.get("THREELOOPS_REPOSITORY", "")
    if not repository:
        return text
    kind = "tree" if file.is_dir() else "blob"
    address = f"{kind}/main/{place}" if file.exists() else re.sub(r"^(\.\./)+", "", place)
    return f"[{text}]({repository}/{address}{end})"
