"""`benchmarks/README.md` and `GPU.md`, written from the evidence: `python -m benchmarks report`.

Nobody types a number into these pages. A summariser reads one evidence file and yields table rows.
"""

from benchmarks.report.evidence import evidence_files
from benchmarks.report.page import ON_CPUS, ON_GPUS, PLACE, pages

__all__ = ["ON_CPUS", "ON_GPUS", "PLACE", "evidence_files", "pages"]
