"""Sphinx's settings for the course's site. `build` writes the sources and calls Sphinx with this file."""

import os
from pathlib import Path

from threeloops_grader.site.documents import colab_links

_HERE = Path(__file__).parent
_REPOSITORY = os.environ.get("THREELOOPS_REPOSITORY", "")

project = "Three Loops"
html_title = project
author = "the authors of Three Loops"
language = "en"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.not_included", "ref.python"]

nb_execution_mode = "off"
nb_code_prompt_show = "Code"
nb_code_prompt_hide = "Code"
nb_output_stderr = "remove"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

default_role = "literal"  # docstrings set code in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
add_module_names = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = [str(_HERE / "static")]
templates_path = [str(_HERE / "templates")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = False
html_context = {
    "colab_of": colab_links(path.stem for path in Path(os.environ["THREELOOPS_SITE_SOURCE"]).glob("labs/*/*.ipynb"))
}
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"font-stack": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"},
}
if _REPOSITORY:
    html_theme_options |= {"source_repository": _REPOSITORY, "source_branch": "main", "source_directory": ""}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
