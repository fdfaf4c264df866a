"""nbgrader on this repository: `solutions/` is its source, `labs/` its release, and the wall grades submissions.

Run nbgrader's commands in this folder. `solutions/*/*.ipynb` are generated from the `.py` sources by
`threeloops release`: run that before the first `nbgrader generate_assignment`.
"""

import sys
import traceback
from pathlib import Path

try:
    from threeloops_grader.classroom.configuration import configure

    configure(get_config(), Path(__file__).resolve().parent)  # noqa: F821 (nbgrader provides get_config)
except Exception:
    traceback.print_exc()
    # An exception would be logged, and nbgrader would go on with its own settings: without the wall.
    sys.exit("nbgrader_config.py failed, and nothing was done: see above")
