"""Sphinx's settings for the course's site. `build` writes the sources and calls Sphinx with this file."""

import os
from pathlib import Path

from threeloops.lab.recording.page import living
from threeloops_grader.site.documents import colab_links, edit_links

_HERE = Path(__file__).parent

project = "Three Loops"
html_title = project
author = "the authors of Three Loops"
language = "en"
extensions = ["myst_nb"]
exclude_patterns = ["_build"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.not_included", "misc.highlighting_failure"]

nb_execution_mode = "off"
nb_code_prompt_show = "Code"
nb_code_prompt_hide = "Code"
nb_output_stderr = "remove"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

html_theme = "furo"
html_static_path = [str(_HERE / "static"), *(str(Path(living.__file__).with_name(name)) for name in living.ASSETS)]
templates_path = [str(_HERE / "templates")]
_TRY = bool(os.environ.get("THREELOOPS_SITE_TRY"))
html_css_files = ["explorer.css", "site.css", *["try.css"] * _TRY]
html_js_files = ["explorer.js", "site.js", *["try.js"] * _TRY]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = False
_SOURCE = Path(os.environ["THREELOOPS_SITE_SOURCE"])
_PAGES = [path.relative_to(_SOURCE).with_suffix("").as_posix() for path in _SOURCE.rglob("*.[im]*")]
html_context = {
    "colab_of": colab_links(
        page.rpartition("/")[2] for page in _PAGES if page.count("/") == 2 and page.startswith("labs/")
    ),
    "edit_of": edit_links(_PAGES),
}
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"font-stack": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
