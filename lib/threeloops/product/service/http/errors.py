"""Put every refusal into OpenAI's format, {"error": {"message", "type", "param", "code"}}, whichever part raised it."""

import json
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from threeloops.product.service.admission import Refused
from threeloops.product.service.engine import EngineStopped, RequestFailed
from threeloops.product.service.http.bodies import unreadable
from threeloops.product.service.models import NotServingError, RegistryError, SwitchFailedError

__all__ = ["ErrorBody", "Refusal", "error_json", "install_error_handlers", "refusal_of"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
}
_LONGEST_MESSAGE = 1000
_LONGEST_NAME = 64
"""Limits in characters. A client's own words come back in an error, so their length is bounded."""
_OF_HTTP = {404: "not_found", 405: "method_not_allowed", 400: "bad_request"}


class _Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: _Error


def error_json(refusal: Refused) -> bytes:
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    error = {
        "message": _short(refusal.message, _LONGEST_MESSAGE),
        "type": kind,
        "param": refusal.param,
        "code": refusal.code,
    }
    return json.dumps({"error": error}).encode()


class Refusal(Response):
    """A response that refuses a request. If coming back helps, it has Retry-After in whole seconds, rounded up. Its
    code is noted for the log."""

    def __init__(self, refusal: Refused, headers: Mapping[str, str] | None = None) -> None:
        headers = dict(headers or {})
        if refusal.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        super().__init__(error_json(refusal), refusal.status, headers, "application/json")
        self._code = refusal.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.get("state", {}).get("log", {})["code"] = self._code
        await super().__call__(scope, receive, send)


def refusal_of(error: Exception) -> Refused | None:
    """Return the refusal that a client gets for an error, or None for an unforeseen error."""
    match error:
        case Refused():
            return error
        case EngineStopped() | NotServingError():
            return Refused(503, "engine_unavailable", f"the model is not being served at the moment: {error}", 1.0)
        case RegistryError():
            return Refused(409, "registry_error", str(error))
        case SwitchFailedError():
            return Refused(409, "switch_failed", str(error))
        case RequestFailed():
            return Refused(500, "generation_failed", f"the model could not finish this request: {error}")
        case RequestValidationError():
            return _of_validation(error)
        case HTTPException(status_code=400):
            return unreadable(error.__cause__)
        case HTTPException():
            messages = {404: "there is nothing at this path", 405: "this path does not take this method"}
            return Refused(
                error.status_code,
                _OF_HTTP.get(error.status_code, "bad_request"),
                messages.get(error.status_code, str(error.detail)),
            )
    return None


_KNOWN = (
    Refused, EngineStopped, NotServingError, RegistryError, SwitchFailedError, RequestFailed, RequestValidationError,
    HTTPException,
)  # fmt: skip


def install_error_handlers(app: FastAPI) -> None:
    async def known(request: Request, error: Exception) -> Response:
        refusal = refusal_of(error)
        assert refusal is not None
        return Refusal(refusal, error.headers if isinstance(error, HTTPException) else None)

    async def unknown(request: Request, error: Exception) -> Response:
        return Refusal(Refused(500, "internal_error", "the service failed; its log says why"))

    for kind in _KNOWN:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(Exception, unknown)


def _of_validation(error: RequestValidationError) -> Refused:
    """Return a refusal that names one field and its error. A field that may be of several kinds has an error for each
    of them. If the value is of one of these kinds, the error for that kind is chosen, and otherwise a description of
    what was expected."""
    errors = error.errors()
    first = next((detail for detail in errors if detail["type"] in ("unsupported", "unfit")), errors[0])
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return Refused(400, "invalid_json", f"the body is not JSON: {reason}".rstrip(": "))
    if first["type"] in ("unsupported", "unfit"):
        param = _path([*_place(first), first["ctx"]["param"]])
        code = "unsupported_parameter" if first["type"] == "unsupported" else "invalid_value"
        return Refused(400, code, f"{param}: {first['msg']}", param=param)
    # Errors of one field are together, and each begins with its path; those of another field say nothing of it.
    alternatives = [detail for detail in errors if _path(_place(detail)).startswith(_path(_place(first)))]
    fitting = [detail for detail in alternatives if not detail["type"].endswith("_type")]
    telling = fitting[0] if fitting else max(alternatives, key=_depth)
    place = _place(telling)
    if telling["type"] == "extra_forbidden":
        param = ".".join([parent, place[-1]] if (parent := _path(place[:-1])) else place[-1:])
        return Refused(400, "unknown_parameter", f"there is no parameter {param!r}", param=param)
    problem = "is missing" if telling["type"] == "missing" else _words(telling)
    name = _path(place) or "the body"
    return Refused(400, "invalid_value", f"{name}: {problem}", param=place[0] if place else None)


def _depth(error: Mapping[str, Any]) -> tuple[list[int], int]:
    """Measure how far the value was read as one of its allowed kinds. The client meant the kind that reads furthest."""
    return [part for part in error["loc"] if isinstance(part, int)], len(error["loc"])


def _place(error: Mapping[str, Any]) -> list[str]:
    inside = error["loc"][error["loc"][:1] in (("body",), ("query",), ("path",), ("header",)) :]
    return [_short(str(part), _LONGEST_NAME) for part in inside]


def _path(place: list[str]) -> str:
    """Return a path such as messages[0].role from pydantic's description of a place, without names of alternatives."""
    words = ""
    for part in place:
        if part.isdigit():
            words += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool"):
            words += f".{part}" if words else part
    return words


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _words(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
