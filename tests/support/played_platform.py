"""An LMS as LTI 1.3 describes it, played on loopback: tokens, names and roles, line items and scores.

It is as strict as the specifications: media types, required fields, timestamps with parts of a second that must grow.
Page addresses hold capitals and a query, line items have a query as Moodle's have. `faults` go wrong in order, one per
score that arrives.
"""

import json
import re
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import jwt

AGS = "https://purl.imsglobal.org/spec/lti-ags/scope/"
NRPS = "https://purl.imsglobal.org/spec/lti-nrps/scope/contextmembership.readonly"
ROLE = "http://purl.imsglobal.org/vocab/lis/v2/membership#"
CLIENT = "10000000000007"
PAGE = 2
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}(Z|[+-]\d\d:\d\d)")


def member(user: str, name: str = "", role: str = "Learner", **more: object) -> dict:
    first, _, last = name.partition(" ")
    named = {"name": name, "given_name": first, "family_name": last} if name else {}
    return {"user_id": user, "status": "Active", "roles": [ROLE + role], **named, **more}


class Refused(Exception):
    """An answer that is not the wanted one: status, body, headers."""

    def __init__(self, status: int, body: object = "", **headers: str):
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


class Lost(Exception):
    """The connection is closed without an answer."""


class Platform:
    """The state of the LMS. Use it in a `with` statement, in which it listens at `url`."""

    def __init__(self, members: list[dict] = ()):
        self.members = list(members)
        self.jwk: dict = {}
        self.scopes = {AGS + "lineitem", AGS + "score", NRPS}
        self.columns: list[dict] = []
        self.scores: dict[tuple[str, str], list[dict]] = {}
        self.faults: deque[str] = deque()
        self.tokens: dict[str, set[str]] = {}
        self.seen: list[tuple[str, str]] = []
        self.audience = ""
        self.pages = PAGE
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.values = {
            "client_id": CLIENT,
            "token_url": f"{self.url}/login/oauth2/token",
            "lineitems_url": f"{self.url}/Course/7/lineitems?type_id=3",
            "memberships_url": f"{self.url}/Course/7/memberships",
        }

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def held(self, label: str = "90_toy") -> dict[str, float]:
        """The newest score of each user in a column."""
        ids = [column["id"] for column in self.columns if column["label"] == label]
        return {user: sent[-1]["scoreGiven"] for (column, user), sent in self.scores.items() if column in ids}

    def answer(self, method: str, path: str, headers: dict, body: bytes) -> tuple[int, object, dict[str, str]]:
        with self._lock:
            self.seen.append((method, path))
            parts = urlsplit(path)
            if (method, parts.path) == ("POST", "/login/oauth2/token"):
                return 200, self._token(parse_qs(body.decode())), {}
            if parts.path == "/moved":
                raise Refused(302, Location=self.values["lineitems_url"])
            if parts.path == "/login.html":
                raise Refused(200, "<html>Log in</html>", **{"Content-Type": "text/html"})
            granted = self.tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
            if granted is None:
                raise Refused(401, {"errors": "Invalid access token"})
            return self._service(method, parts.path, parse_qs(parts.query), headers, body, granted)

    def _token(self, form: dict) -> dict:
        """RFC 7523 and the security framework of 1EdTech, sections 4.1 and 5."""
        one = {name: values[0] for name, values in form.items()}
        try:
            assert one["grant_type"] == "client_credentials"
            assert one["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            assert jwt.get_unverified_header(one["client_assertion"])["kid"] == self.jwk["kid"], "unknown key"
            key = jwt.PyJWK(self.jwk).key
            audience = self.audience or self.values["token_url"]
            claims = jwt.decode(one["client_assertion"], key, algorithms=["RS256"], audience=audience)
            assert claims["iss"] == claims["sub"] == CLIENT, "unknown client"
            assert claims["jti"] not in self._used, "used before"
            assert claims["exp"] - claims["iat"] <= 3600
            self._used.add(claims["jti"])
        except (AssertionError, KeyError, jwt.PyJWTError) as error:
            raise Refused(400, {"error": "invalid_client", "error_description": str(error)}) from None
        wanted = set(one["scope"].split())
        if not wanted <= self.scopes:
            raise Refused(400, {"error": "invalid_scope"})
        token = f"token{len(self.tokens)}"
        self.tokens[token] = wanted
        return {"access_token": token, "token_type": "Bearer", "expires_in": 3600, "scope": one["scope"]}

    def _service(self, method, path, query, headers, body, granted):
        accept, kind = headers.get("accept"), headers.get("content-type")
        if path == "/Course/7/memberships" and method == "GET":
            _require(NRPS in granted, 403)
            _require(accept == "application/vnd.ims.lti-nrps.v2.membershipcontainer+json", 406)
            page, links = self._page(self.members, path, query)
            return 200, {"id": path, "context": {"id": "7"}, "members": page}, links
        if path == "/Course/7/lineitems":
            _require(AGS + "lineitem" in granted, 403)
            _require(query.get("type_id") == ["3"], 404)
            if method == "GET":
                _require(accept == "application/vnd.ims.lis.v2.lineitemcontainer+json", 406)
                page, links = self._page(self.columns, path, query, "&type_id=3")
                return 200, page, links
            _require(kind == "application/vnd.ims.lis.v2.lineitem+json", 415)
            given = json.loads(body)
            _require(given["label"] and given["scoreMaximum"] > 0 and "id" not in given, 400)
            column = {"id": f"{self.url}{path}/{len(self.columns)}/lineitem?type_id=3", **given}
            self.columns.append(column)
            return 201, column, {}
        found = re.fullmatch(r"(/Course/7/lineitems/\d+/lineitem)/scores", path)
        _require(found and method == "POST" and query.get("type_id") == ["3"], 404)
        _require(AGS + "score" in granted, 403)
        _require(kind == "application/vnd.ims.lis.v1.score+json", 415)
        self._score(f"{self.url}{found[1]}?type_id=3", json.loads(body))
        return 200, {"resultUrl": f"{self.url}/results/1"}, {}

    def _score(self, column: str, score: dict) -> None:
        fault = self.faults.popleft() if self.faults else ""
        if fault == "401":
            self.tokens.clear()
            raise Refused(401, {"errors": "expired"})
        if fault == "429":
            raise Refused(429, "slow down", **{"Retry-After": "0"})
        if fault == "429 for long":
            raise Refused(429, "slow down", **{"Retry-After": "3600"})
        if fault == "html":
            raise Refused(200, "<html>Log in</html>", **{"Content-Type": "text/html"})
        if fault.isdecimal():
            raise Refused(int(fault), f"refused with {fault}")
        if fault == "lost before":
            raise Lost
        _require(column in {c["id"] for c in self.columns}, 404)
        _require(score["activityProgress"] in ("Initialized", "Completed"), 400)
        _require(score["gradingProgress"] == "FullyGraded", 400)
        _require(score["scoreGiven"] >= 0 and score["scoreMaximum"] > 0, 400)
        for time in [score["timestamp"], *score.get("submission", {}).values()]:
            _require(TIMESTAMP.fullmatch(time), 400)
        _require(score["userId"] in {m["user_id"] for m in self.members}, 404)
        sent = self.scores.setdefault((column, score["userId"]), [])
        _require(not sent or sent[-1]["timestamp"] < score["timestamp"], 409)  # all of them are in UTC
        sent.append(score)
        if fault == "lost after":
            raise Lost

    def _page(self, items: list, path: str, query: dict, more: str = ""):
        """A page and the header for the next one, whose address is good as it is only."""
        first = 0
        if "page" in query:
            found = re.fullmatch(r"Bookmark(\d+)", query["page"][0])
            _require(found, 404)
            first = int(found[1])
        following = first + self.pages
        if following >= len(items):
            return items[first:], {"Link": f'<{self.url}{path}>; rel="first"'}
        link = f'<{self.url}{path}?page=Bookmark{following}{more}>; rel="next", <{self.url}{path}>; rel="first"'
        return items[first:following], {"Link": link}


def _require(holds: object, status: int) -> None:
    if not holds:
        raise Refused(status, {"errors": {"type": "refused", "message": f"because of {status}"}})


def _handler(platform: Platform):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True  # the answer is written in two parts

        def _do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, answer, more = platform.answer(self.command, self.path, headers, body)
            except Refused as refused:
                status, answer, more = refused.status, refused.body, refused.headers
            except Lost:
                self.close_connection = True
                return
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(text), **more}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _do

        def log_message(self, *_):
            pass

    return Handler
