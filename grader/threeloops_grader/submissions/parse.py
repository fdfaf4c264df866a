"""Parse a submitted notebook into plain data. Its size and structure are bounded before anything is built from it."""

import json
import re

import nbformat
from nbformat import NotebookNode

from threeloops_grader.submissions.folder import require_small_notebook
from threeloops_grader.submissions.submitted import BadSubmission, essentials

__all__ = ["parse"]

_MAX_VALUES = 1_000_000
_MAX_CONTAINERS = 200_000

# A string (up to its end or the end of the file), or what opens or separates values. Nothing is matched twice.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?+)*+(?:"|\Z)|[\[{,]', re.DOTALL)


def parse(content: bytes) -> NotebookNode:
    """Parse notebook bytes into data, reduced to the parts that grading reads (`essentials`). `rebuild` judges it
    against the lab.

    Raises:
        BadSubmission: too large, not JSON, not a JSON object, or too many cells.
    """
    require_small_notebook(len(content))
    if not content.strip():
        raise BadSubmission("the file is empty; save the notebook again and hand it in")
    _require_few_values(content)
    try:
        # As UTF-8 and nothing else: the bytes were counted as such, and in UTF-16 half a character looks like a quote.
        data = json.loads(content.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadSubmission(f"the file is not JSON ({error}): not a notebook, or one that was cut off") from None
    if not isinstance(data, dict):
        raise BadSubmission(f"the file holds a JSON {type(data).__name__}, not a notebook")
    return nbformat.from_dict(essentials(data))


def _require_few_values(content: bytes) -> None:
    """Count values without building any: in memory, an object costs a hundred times the two bytes of its text."""
    values = containers = 0
    for token in _TOKEN.finditer(content):
        first = content[token.start()]
        if first == ord('"'):
            continue
        values += 1
        containers += first != ord(",")
        if values > _MAX_VALUES or containers > _MAX_CONTAINERS:
            raise BadSubmission(
                f"the file is not JSON that grading reads: it holds more than {_MAX_CONTAINERS:,} lists and objects, "
                f"or {_MAX_VALUES:,} values; clear the notebook's outputs and hand it in again"
            )
