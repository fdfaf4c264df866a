"""Check the body of a request before it is read as JSON, and explain why a body is not readable."""

import re
from collections.abc import Mapping

from threeloops.product.service.admission import Refused

__all__ = ["check_body", "check_kind", "has_body", "unreadable"]

_JSON = re.compile(rb"application/(?:[a-z0-9.+-]*\+)?json\s*(?:;.*)?", re.IGNORECASE)


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the headers announce a body."""
    return headers.get(b"content-length", b"").strip(b"0") != b"" or b"transfer-encoding" in headers


def check_kind(headers: Mapping[bytes, bytes]) -> None:
    """Check that the headers announce JSON that is not compressed. Raises Refused, status 415, if they do not."""
    if not has_body(headers):
        return
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if coding not in (b"", b"identity"):
        raise Refused(
            415,
            "unsupported_encoding",
            f"the body is compressed (Content-Encoding: {_shown(coding)}): send it as it is, without Content-Encoding",
        )
    if (kind := headers.get(b"content-type")) is None:
        raise Refused(415, "unsupported_media_type", "the header Content-Type is missing: expected application/json")
    if not _JSON.fullmatch(kind.strip()):
        raise Refused(
            415,
            "unsupported_media_type",
            f"Content-Type is {_shown(kind)}: expected application/json (with curl: -H 'Content-Type: "
            "application/json')",
        )


def check_body(body: bytes) -> None:
    """Check that a body is UTF-8. Raises Refused, status 400, if it is not."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            400, "invalid_utf8", f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}"
        ) from None


def unreadable(cause: BaseException | None) -> Refused:
    """Make the error for a body that the JSON reader cannot read for a reason other than its syntax."""
    if isinstance(cause, RecursionError):
        return Refused(
            400, "nested_too_deeply", "the body nests arrays or objects too deeply: expected a few dozen levels"
        )
    return Refused(400, "invalid_json", f"the body cannot be read as JSON: {str(cause).partition(';')[0]}")


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1"))
