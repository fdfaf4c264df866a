"""The platform of a class (Canvas, Moodle or another): its addresses, the tool's key, and signed requests to it."""

import ipaddress
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from jwcrypto.jwk import JWK
from pylti1p3.assignments_grades import AssignmentsGradesService
from pylti1p3.exception import LtiException, LtiServiceException
from pylti1p3.names_roles import NamesRolesProvisioningService
from pylti1p3.registration import Registration
from pylti1p3.service_connector import ServiceConnector, TServiceConnectorResponse
from requests.adapters import HTTPAdapter
from requests.utils import parse_header_links
from threeloops.files import replace_text
from urllib3.exceptions import MaxRetryError
from urllib3.util import Retry

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register.settings import class_folder

__all__ = [
    "AGS_SCOPES", "NRPS_SCOPE", "Connector", "Platform", "connect", "explained", "json_of", "key_of", "load",
    "make_key", "reason", "save",
]  # fmt: skip

AGS_SCOPES = (
    "https://purl.imsglobal.org/spec/lti-ags/scope/lineitem",
    "https://purl.imsglobal.org/spec/lti-ags/scope/score",
)
NRPS_SCOPE = "https://purl.imsglobal.org/spec/lti-nrps/scope/contextmembership.readonly"

_SECONDS = (10, 60)
"""How long a request waits for a connection, and then for each part of the answer."""

_MOST_PATIENCE = 60
"""Seconds that the platform may ask us to wait (Retry-After) before a request is given up."""

_BACKOFF = 1.0
"""Seconds before the second repetition if the platform names no time; twice as long before the third."""

_SHOWN = 200

_NEW_KEY = "delete it, run `threeloops class lms init`, and give the LMS's administrator the new public key"


@dataclass(frozen=True)
class Platform:
    """The values that the LMS's administrator gives for a class. An empty `audience` means the token URL, as usual."""

    client_id: str = ""
    token_url: str = ""
    lineitems_url: str = ""
    memberships_url: str = ""
    audience: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value.isprintable() or any(map(str.isspace, value)):
                raise LabError(f"{_option(field.name)} is {value!r}, expected a value without spaces or line breaks")
            if value and field.name.endswith("_url"):
                try:
                    _require_private(value)
                except LabError as error:
                    raise LabError(f"{_option(field.name)}: {error}") from None

    @property
    def missing(self) -> list[str]:
        """The options of `threeloops class lms init` that were not given yet."""
        names = [field.name for field in fields(self) if field.name != "audience"]
        return [_option(name) for name in names if not getattr(self, name)]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require_private(url: str) -> None:
    """Check that nobody on the way can read what is sent to an address. Raises LabError if somebody could."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise LabError(f"{url[:_SHOWN]!r} is not an address; expected one that begins with https://")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if parts.scheme == "http" and not loopback:
        raise LabError(
            f"{url[:_SHOWN]} is not encrypted, so tokens and grades are not sent to it; use the platform's https:// "
            "address"
        )


def _path(name: str, root: Path | None = None) -> Path:
    return class_folder(root) / name


def load(root: Path | None = None) -> Platform:
    """Return the platform as far as it was entered. Raises LabError if the file is damaged."""
    path = _path("lms.json", root)
    try:
        return Platform(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Platform()
    except (ValueError, TypeError, LabError) as error:
        raise LabError(f"{path} is damaged ({error}); delete it and run `threeloops class lms init` again") from None


def save(platform: Platform, root: Path | None = None) -> None:
    replace_text(_path("lms.json", root), json.dumps(asdict(platform), indent=1) + "\n")


def make_key(root: Path | None = None) -> bool:
    """Make the tool's key pair unless there is one, in a file that nobody else can read; return whether it is new."""
    path = _path("lms_key.pem", root)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return False
    pem = JWK.generate(kty="RSA", size=2048).export_to_pem(private_key=True, password=None)
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    half.replace(path)
    return True


def key_of(root: Path | None = None) -> Registration:
    """Return pylti1p3's record of the tool with its key pair. Raises LabError: there is none, or others can read it."""
    path = _path("lms_key.pem", root)
    try:
        mode = path.stat().st_mode & 0o777
        pem = path.read_bytes()
    except FileNotFoundError:
        raise LabError(f"there is no key at {path}; run `threeloops class lms init` first") from None
    if mode & 0o077:
        raise LabError(f"{path} has the mode {mode:o}, so others may have read the key; {_NEW_KEY}")
    try:
        key = JWK.from_pem(pem)
        if not key.has_private:
            raise ValueError("it is a public key")
    except ValueError as error:
        raise LabError(f"{path} is not a private key ({str(error)[:_SHOWN]}); {_NEW_KEY}") from None
    return Registration().set_tool_private_key(pem.decode()).set_tool_public_key(key.export_to_pem().decode())


def json_of(registration: Registration) -> str:
    """Return the public key as a JSON Web Key, in one line."""
    return json.dumps(registration.get_jwks()[0])


def connect(root: Path | None = None) -> "Connector":
    """Return what sends requests to the platform. Raises LabError if the key or one of its values is missing."""
    platform = load(root)
    registration = key_of(root)
    if platform.missing:
        raise LabError(
            f"the LMS is not set up: {', '.join(platform.missing)} missing; enter what its administrator gives you "
            "with `threeloops class lms init`"
        )
    registration.set_client_id(platform.client_id).set_auth_token_url(platform.token_url)
    if platform.audience:
        registration.set_auth_audience(platform.audience)
    return Connector(platform, registration)


class _Patience(Retry):
    """Repeats a request that the platform had no time for (429), unless it asks us to wait too long."""

    RETRY_AFTER_STATUS_CODES = frozenset({429})

    def increment(self, *args: Any, **kwargs: Any) -> Any:
        response = kwargs.get("response")
        if response is not None and (self.get_retry_after(response) or 0) > _MOST_PATIENCE:
            raise MaxRetryError(kwargs["_pool"], None)
        return super().increment(*args, **kwargs)


class _Adapter(HTTPAdapter):
    """Sends nothing without encryption, follows no redirect, and waits for nothing without a limit."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        _require_private(request.url or "")
        kwargs["timeout"] = kwargs.get("timeout") or _SECONDS
        response = super().send(request, *args, **kwargs)
        if response.is_redirect:  # a POST would arrive as a GET, and count as accepted
            target = response.headers["location"][:_SHOWN]
            raise LabError(
                f"{request.url} sends us on to {target}; enter the final address with `threeloops class lms init`"
            )
        return response


def _session() -> requests.Session:
    patience = _Patience(
        total=3,
        connect=0,
        read=0,
        other=0,
        status_forcelist=[429],
        allowed_methods=None,
        backoff_factor=_BACKOFF,
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(max_retries=patience))
    session.auth = lambda request: request  # otherwise an entry in ~/.netrc would take the place of the token
    session.headers["User-Agent"] = "threeloops"
    return session


class Connector(ServiceConnector):
    """pylti1p3's connector with new tokens for expired ones and exact page addresses (it reads them in lower case)."""

    def __init__(self, platform: Platform, registration: Registration) -> None:
        super().__init__(registration, _session())
        self.platform = platform
        self._pages: set[str] = set()

    def get_access_token(self, scopes: Sequence[str]) -> str:
        """Return a token for some scopes. Raises LabError, with the value to correct, if the platform gives none."""
        where = f"the token URL {self.platform.token_url}"
        try:
            return super().get_access_token(scopes)
        except LtiServiceException as error:
            raise LabError(_why_no_token(error.response, self.platform, scopes)) from None
        except requests.JSONDecodeError:
            raise LabError(
                f"{where} does not answer in JSON; is --token-url the address of the token service?"
            ) from None
        except requests.RequestException as error:
            raise LabError(f"{where} cannot be reached ({_cause(error)}); check --token-url and the network") from None
        except (ValueError, KeyError, TypeError):
            raise LabError(
                f"{where} answers without an access token; is it the address of the token service?"
            ) from None

    def make_service_request(
        self, scopes: Sequence[str], url: str, *args: Any, **kwargs: Any
    ) -> TServiceConnectorResponse:
        kwargs["case_insensitive_headers"] = True
        try:
            response = super().make_service_request(scopes, url, *args, **kwargs)
        except LtiServiceException as error:
            if error.response.status_code != requests.codes.unauthorized:
                raise
            self._access_tokens.clear()  # expired: it was valid when this connector fetched it
            response = super().make_service_request(scopes, url, *args, **kwargs)
        links = parse_header_links(response["headers"].get("link", ""))
        following = next((link["url"] for link in links if "next" in link.get("rel", "")), None)
        if following in self._pages:
            raise LabError(
                f"the platform names the page {following[:_SHOWN]} twice; its list has no end. Tell its administrator"
            )
        self._pages |= {following} if following else set()
        response["next_page_url"] = following
        return response

    def grades(self) -> AssignmentsGradesService:
        data: Any = {"scope": list(AGS_SCOPES), "lineitems": self.platform.lineitems_url}
        return AssignmentsGradesService(self, data)

    def members(self) -> NamesRolesProvisioningService:
        return NamesRolesProvisioningService(self, {"context_memberships_url": self.platform.memberships_url})

    def tried(self) -> tuple[int, int]:
        """Return the numbers of columns and members. Raises LabError if one of the addresses does not answer."""
        columns = self.platform.lineitems_url
        members = self.platform.memberships_url
        with explained(f"reading the columns at {columns}", "--lineitems-url", AGS_SCOPES):
            count = len(self.grades().get_lineitems())
        with explained(f"reading the members at {members}", "--memberships-url", [NRPS_SCOPE]):
            return count, len(self.members().get_members())


def _why_no_token(response: requests.Response, platform: Platform, scopes: Sequence[str]) -> str:
    """Return what to correct after the token service refused (RFC 6749, section 5.2)."""
    try:
        answer = response.json()
        code = str(answer["error"])
        error = _short(f"{code}: {answer.get('error_description') or response.status_code}")
    except (ValueError, KeyError, TypeError, AttributeError):
        code = ""
        error = reason(LtiServiceException(response))
    if code == "invalid_scope":
        names = ", ".join(scope.rpartition("/scope/")[2] for scope in scopes)
        return (
            f"the platform gives no token for the scopes {names} ({error}); have them enabled for this tool in the LMS"
        )
    if code in ("invalid_client", "invalid_grant", "unauthorized_client"):
        return (
            f"the platform refuses the client id {platform.client_id} or its key ({error}); compare --client-id with "
            "the LMS, and the public key there with the one that `threeloops class lms init` prints"
        )
    return f"the token URL {platform.token_url} gives no token ({error}); compare --token-url with the LMS"


def _short(text: str) -> str:
    """Return a text from the platform as one printable line."""
    line = " ".join(text.split())[:_SHOWN]
    return "".join(c if c.isprintable() else "?" for c in line)


def _cause(error: requests.RequestException) -> str:
    """Return the innermost reason of a failed request, without addresses in memory."""
    inner: Any = error
    while (args := getattr(inner, "args", ())) and isinstance(args[-1], Exception):
        inner = args[-1]
    return _short(str(getattr(inner, "reason", None) or inner).rpartition(">: ")[2] or type(error).__name__)


def reason(error: Exception) -> str:
    """Return in a few words why a request failed."""
    if isinstance(error, LtiServiceException):
        response = error.response
        wait = response.headers.get("Retry-After", "")
        if response.status_code == requests.codes.too_many_requests and wait:
            return f"HTTP 429: too many requests; it asks to wait for {_short(wait)} seconds"
        kind = response.headers.get("Content-Type", "")
        text = response.reason if "html" in kind else response.text or response.reason
        return _short(f"HTTP {response.status_code}: {text}")
    if isinstance(error, requests.JSONDecodeError):
        return "the answer is not JSON"
    if isinstance(error, requests.RequestException):
        return f"the connection was lost ({_cause(error)})"
    return _short(str(error)) or type(error).__name__


@contextmanager
def explained(what: str, option: str, scopes: Sequence[str]) -> Iterator[None]:
    """Turn every failure of a request into one sentence with the next step. `option` is the address that it used."""
    names = " and ".join(scope.rpartition("/scope/")[2] for scope in scopes)
    try:
        yield
    except LtiServiceException as error:
        refused = error.response.status_code in (requests.codes.unauthorized, requests.codes.forbidden)
        later = error.response.status_code in (429, 500, 502, 503, 504)
        step = (
            f"have the scopes {names} and the tool enabled for this course in the LMS" if refused else f"check {option}"
        )
        raise LabError(f"{what} failed ({reason(error)}); {'try again later' if later else step}") from None
    except requests.JSONDecodeError:
        raise LabError(f"{what} failed: the answer is not JSON; check {option}") from None
    except requests.RequestException as error:
        raise LabError(f"{what} failed ({reason(error)}); check {option} and the network") from None
    except (LtiException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{what} failed: the answer is not what LTI describes ({reason(error)}); check {option}"
        ) from None
