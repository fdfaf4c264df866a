"""HTML pages of executed notebooks and of reports: self-contained, readable without a network. No script runs but that
of explorers, on pages that have some."""

import copy
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nbconvert import HTMLExporter
from nbformat import NotebookNode
from threeloops.lab.recording.page.living import asset
from threeloops.lab.widgets.style import WIDTH

from threeloops_grader.authoring.labs import OPENING
from threeloops_grader.pages.navigation import NAVIGATION_STYLE, PageLink, anchored, navigation
from threeloops_grader.pages.page_policy import page_with_script, static_page

__all__ = ["Cell", "notebook_page", "page", "remote_references", "table"]

_LOADS = re.compile(
    r"(?:<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=|<link\b[^>]*\bhref=|@import\s+(?:url\()?|\burl\()"
    r"\s*[\"']?(?:https?:)?//[^\s\"')>]+|\bimport\b[^;\n]*?[\"']https?://[^\"']+",
    re.IGNORECASE,
)

_STYLE = """
:root { color-scheme: light dark; --ink:#1d2433; --soft:#5b6475; --line:#d9dee8; --paper:#fff;
  --good:#1a7f4b; --bad:#b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7eaf0; --soft:#a3adbd; --line:#39414f; --paper:#14181f;
  --good:#5fd39a; --bad:#ff8a80; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--soft); margin: 0 0 1.5rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .45rem .7rem; vertical-align: top;
  border-bottom: 1px solid var(--line); } th { font-weight: 600; color: var(--soft); font-size: .85rem; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); }
a { color: inherit; } pre { white-space: pre-wrap; margin: 0; font-size: .85rem; }
.wide { overflow-x: auto; }
@media (max-width: 46rem) { thead { display: none; } table, tbody, tr, td { display: block; } tr { padding: .6rem 0;
  border-bottom: 1px solid var(--line); } td { border: 0; padding: .1rem 0; } td:first-child { font-weight: 600; }
  td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); font-weight: 400; } }
"""


# The source of a hidden cell is folded away; nbconvert's own template shows it.
_TEMPLATE = """
{%- extends 'lab/index.html.j2' -%}
{%- block input_group -%}
{%- if cell.metadata.get('jupyter', {}).get('source_hidden') -%}
<details class="folded"><summary>code</summary>{{ super() }}</details>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock input_group -%}
{%- block html_head -%}
{{ resources.policy }}
<meta name="viewport" content="width=device-width">
{{ super() }}
{{ resources.dark }}
<style>
.folded { width: 100%; } .folded > summary { cursor: pointer; color: #767676; font: 12px system-ui, sans-serif;
  padding-left: var(--jp-cell-prompt-width); }
.jp-Cell:has(.folded) { flex-direction: column; }
:root { color-scheme: light dark; } body.jp-Notebook { padding: 1.5rem 1.25rem; }
main, nav.pages { max-width: 62rem; margin-left: auto; margin-right: auto; }
nav.pages { color: var(--jp-content-font-color1); }
main .jp-RenderedHTMLCommon > :is(p, ul, ol) { max-width: {{ resources.width }}; }
main .jp-MarkdownOutput p:has(> img:only-child) { overflow-x: auto; }
main .jp-MarkdownOutput img { min-width: 36rem; }
main .jp-OutputArea-output { overflow-x: auto; }
main .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }
{{ resources.navigation_style }}
</style>
{%- endblock html_head -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block html_head_js_mermaidjs -%}{%- endblock html_head_js_mermaidjs -%}
"""


def notebook_page(notebook: NotebookNode, title: str, back: Sequence[PageLink] = ()) -> str:
    """Render one executed notebook as a page: figures inline, widgets in their static form. Explorers that were
    recorded are alive, by the only script that the page allows.

    The cell that draws the opening picture is left out, because the title shows that picture.

    It is light or dark like its reader's system, and has a list of its sections beside links to other pages (`back`).
    """
    notebook = copy.deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["title"] = title
    notebook.cells = [cell for cell in notebook.cells if OPENING not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    exporter = HTMLExporter(embed_images=True, raw_template=_TEMPLATE)
    policy = page_with_script(asset("explorer.js"))
    resources = {"policy": policy, "dark": _dark_theme(), "navigation_style": NAVIGATION_STYLE, "width": WIDTH}
    page, _ = exporter.from_notebook_node(notebook, resources=resources)
    return page.replace("<main>", navigation(page, back) + "<main>", 1)


@cache
def _dark_theme() -> str:
    """Return JupyterLab's dark colours, for readers whose system is dark. nbconvert has either these or the light
    ones."""
    folders = [Path(folder) / "lab/static" for folder in HTMLExporter().template_paths]
    folders += [Path(folder) / "static" for folder in HTMLExporter().template_paths]
    file = next(folder / "theme-dark.css" for folder in folders if (folder / "theme-dark.css").is_file())
    return f'<style media="(prefers-color-scheme: dark)">{file.read_text(encoding="utf-8")}</style>'


def remote_references(page: str) -> list[str]:
    """Return the references that a page would load from another machine. They exclude links that a reader must
    click."""
    return [m.group(0)[:120] for m in _LOADS.finditer(page)]


def page(title: str, lead: str, *sections: str, style: str = "", back: Sequence[PageLink] = ()) -> str:
    """Return a report page around finished HTML sections. `style` is CSS of its own, `back` are links to pages beside
    it."""
    body = anchored("".join(sections))
    return (
        f"<!doctype html>\n<html lang='en'><head>{static_page()}<meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title><meta name='viewport' content='width=device-width'>"
        f"<style>{_STYLE}{NAVIGATION_STYLE}{style}</style></head><body>{navigation(body, back)}"
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>{body}</body></html>\n"
    )


@dataclass(frozen=True)
class Cell:
    """A table cell; `kind` holds CSS classes ("number", "good", "bad"), and "pre" for text with line breaks.

    Backticks set code in any other text.
    """

    text: str
    kind: str = ""
    href: str = ""

    def html(self, label: str = "") -> str:
        """Return the cell's HTML. `label` stands before the text if the header of the table is not shown."""
        text = html.escape(self.text)
        if self.href:
            text = f"<a href='{html.escape(self.href)}'>{text}</a>"
        if "pre" in self.kind.split():
            text = f"<pre>{text}</pre>"
        else:
            text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
        attribute = f" data-label='{html.escape(label)}'" if label and text else ""
        return f"<td class='{html.escape(self.kind)}'{attribute}>{text}</td>"


def table(header: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> str:
    """Return an HTML table that scrolls if it is wider than the page. Texts are escaped.

    A phone shows each row as a list: its first cell as a title, then the others, each after its header.
    """
    head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
    cells = ([Cell(c) if isinstance(c, str) else c for c in row] for row in rows)
    labels = ["", *header[1:]]
    body = "".join(
        f"<tr>{''.join(cell.html(label) for label, cell in zip(labels, row, strict=True))}</tr>" for row in cells
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
