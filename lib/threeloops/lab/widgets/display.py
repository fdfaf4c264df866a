"""One way to show anything: a rich bundle in a notebook, plain text elsewhere."""

import sys

__all__ = ["in_kernel", "publish"]


def _shell():
    """The running IPython shell, or None in plain Python; imports nothing."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def in_kernel() -> bool:
    """True under JupyterLab, papermill and the like; False in a terminal, in plain Python and behind the wall."""
    return getattr(_shell(), "kernel", None) is not None


def publish(text: str, bundle: dict | None = None, metadata: dict | None = None) -> None:
    """Emit exactly one display of `bundle` (MIME type → data) with `text` as its plain form, or print the text."""
    if _shell() is None:
        print(text)
        return
    from IPython.display import display

    display({**(bundle or {}), "text/plain": text}, raw=True, metadata=metadata or {})
