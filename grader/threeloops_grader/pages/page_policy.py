"""The Content-Security-Policy of pages: markup of a student's work that slips through cannot run."""

import base64
import hashlib

__all__ = ["formgrader_page", "page_with_script", "static_page"]

_CLOSED = {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "img-src": "data:"}
_HANDLERS = ("toggle_name(true);", "toggle_name(false);")
"""The event handlers in formgrader's own markup."""


def static_page() -> str:
    """Return the policy of a page without scripts: nothing runs, nothing is loaded, nothing is sent."""
    return _meta({**_CLOSED, "style-src": "'unsafe-inline'", "font-src": "data:"})


def page_with_script(script: str) -> str:
    """Return the policy of a page on which this script runs wherever it stands, and no other."""
    return _meta({**_CLOSED, "style-src": "'unsafe-inline'", "font-src": "data:", "script-src": _hash(script)})


def formgrader_page(nonce: str) -> str:
    """Return the policy of formgrader's page: scripts with the nonce run, and may talk to their own server."""
    handlers = " ".join(map(_hash, _HANDLERS))
    own = {
        "script-src": f"'nonce-{nonce}' 'unsafe-hashes' {handlers}",
        "connect-src": "'self'",
        "style-src": "'self' 'unsafe-inline'",
        "font-src": "'self'",
    }
    return _meta({**_CLOSED, **own})


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _meta(rules: dict[str, str]) -> str:
    text = "; ".join(f"{name} {value}" for name, value in rules.items())
    return f'<meta http-equiv="Content-Security-Policy" content="{text}">'
