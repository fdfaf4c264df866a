"""A page for an operator without Grafana.

It reads /metrics every other second, computes rates and percentiles from the changes, and draws the latest minutes. It
contacts no other server.
"""

import html
from functools import cache
from pathlib import Path

__all__ = ["DASHBOARD_POLICY", "dashboard_page"]

DASHBOARD_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page: its own script and style, and requests to the service that sent it."""


def dashboard_page(model_name: str) -> str:
    """The page, to be served beside /metrics: it asks for `metrics` in its own folder."""
    return _template().replace("{{model_name}}", html.escape(model_name))


@cache
def _template() -> str:
    return (Path(__file__).parent / "dashboard.html").read_text(encoding="utf-8")
