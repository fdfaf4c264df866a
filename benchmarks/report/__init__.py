"""`benchmarks/README.md`, written from the evidence: `python -m benchmarks report`.

Nobody types a number into that page. A summariser reads one evidence file and yields table rows.
"""

from benchmarks.report.evidence import evidence_files
from benchmarks.report.page import PAGE, page

__all__ = ["PAGE", "evidence_files", "page"]
