"""The configuration in a real NGINX, in front of replicas that stream, break, refuse or are not there."""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from deployment import FILES, program, running, settings
from slurm import free_ports, wait_until

CONFIGURATION = (FILES / "nginx/nginx.conf").read_text()
SECONDS = 10  # that anything here may take


class Replica(BaseHTTPRequestHandler):
    """Answers by path, and writes down what arrived in `server.seen`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path, body, self.headers.get("X-Request-Id")))
        getattr(self, self.path.removeprefix("/v1/"))()

    def echo(self):
        self.answer(200, b'{"ok":true}')

    def busy(self):
        self.answer(503, b'{"error":{"code":"draining"}}', ("Retry-After", "7"))

    def breaks(self):
        self.close_connection = True  # as a process that is killed: the request was read, and there is no answer

    def stream(self):
        self.answer(200, None, ("Content-Type", "text/event-stream"), ("Connection", "close"))
        self.wfile.write(b"data: first\n\n")
        assert self.server.read_first.wait(SECONDS), "the first event did not reach the client"
        self.wfile.write(b"data: second\n\n")

    def endless(self):
        self.answer(200, None, ("Content-Type", "text/event-stream"), ("Connection", "close"))
        with contextlib.suppress(OSError):
            while not self.server.stopping.wait(0.02):
                self.wfile.write(b"data: token\n\n")
            return
        self.server.left.set()

    def answer(self, status, body, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_):
        pass


class Replicas(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A connection that the other side closed is what some tests are about; anything else is reported."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def replica():
    server = Replicas(("127.0.0.1", 0), Replica)
    server.seen, server.read_first, server.left, server.stopping = [], *(threading.Event() for _ in range(3))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(SECONDS)


@contextlib.contextmanager
def nginx(folder, ports):
    """The shipped configuration with other ports; yields the one on which it listens."""
    (port,) = free_ports(1)
    text = CONFIGURATION.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    for shipped, actual in zip((8001, 8002), ports, strict=True):
        text = text.replace(f"127.0.0.1:{shipped} ", f"127.0.0.1:{actual} ")
    (folder / "nginx.conf").write_text(text)
    command = [program("nginx", "nginx-light"), "-p", f"{folder}/", "-c", f"{folder}/nginx.conf", "-g", "daemon off;"]
    with running(command, folder / "nginx.log"):
        wait_until(lambda: listens(port), SECONDS, f"NGINX on port {port}: {folder}/nginx.log")
        yield port


def listens(port):
    try:
        return ask(port, "/health", method="GET").status == 200
    except OSError:
        return False


def ask(port, path, body=b"{}", method="POST", **headers):
    """The answer, whose body is still to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request(method, path, body if method == "POST" else None, headers)
    return connection.getresponse()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    with replica() as one, replica() as two, nginx(folder, (one.server_port, two.server_port)) as port:
        yield port, (one, two)


@pytest.fixture
def seen(fleet):
    """What the replicas get in this test."""
    port, replicas = fleet
    for each in replicas:
        each.seen.clear()
    yield lambda: [request for each in replicas for request in each.seen]


def test_nginx_accepts_the_file_as_it_is(tmp_path):
    command = [program("nginx", "nginx-light"), "-p", f"{tmp_path}/", "-c", FILES / "nginx/nginx.conf", "-t"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "test is successful" in done.stderr, done.stderr


def test_its_limits_are_those_of_the_service():
    def seconds(name):
        return int(re.search(rf"{name} (\d+)s;", CONFIGURATION)[1])

    assert int(re.search(r"client_max_body_size (\d+)m;", CONFIGURATION)[1]) << 20 == settings()["body_bytes"]
    assert seconds("proxy_read_timeout") > settings()["request_seconds"], "else NGINX gives up before the service"
    assert "non_idempotent" not in re.sub(r"#.*", "", CONFIGURATION)


def test_a_stream_arrives_token_by_token(fleet):
    port, replicas = fleet
    answer = ask(port, "/v1/stream")
    assert answer.readline() == b"data: first\n"  # the replica sends no more until this has arrived
    for each in replicas:
        each.read_first.set()
    assert b"second" in answer.read()


def test_a_client_that_leaves_in_mid_stream_is_known_to_the_replica(fleet):
    port, replicas = fleet
    answer = ask(port, "/v1/endless")
    answer.readline()
    answer.close()
    wait_until(lambda: any(each.left.is_set() for each in replicas), SECONDS, "the replica to notice")


def test_a_replica_that_is_not_there_costs_no_request(tmp_path):
    with replica() as there, nginx(tmp_path, (*free_ports(1), there.server_port)) as port:
        answers = [ask(port, "/v1/echo") for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        assert len(there.seen) == 6


def test_a_request_that_a_dying_replica_has_read_is_not_sent_again(fleet, seen):
    port, _ = fleet
    for _ in range(4):
        ask(port, "/v1/echo").read()  # connections to both are open, and kept
    answer = ask(port, "/v1/breaks")
    assert answer.status == 502 and answer.headers["Retry-After"] == "5"
    assert json.loads(answer.read())["error"]["code"] == "no_replica"
    assert [path for path, *_ in seen()].count("/v1/breaks") == 1, "it would be generated and paid for twice"


def test_the_refusal_of_a_draining_replica_reaches_the_client_as_it_is(fleet, seen):
    port, _ = fleet
    answer = ask(port, "/v1/busy")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
    assert json.loads(answer.read())["error"]["code"] == "draining"
    assert len(seen()) == 1


def test_a_body_that_is_too_large_is_refused_in_the_form_of_the_api(fleet, seen):
    port, _ = fleet
    most = settings()["body_bytes"]
    assert ask(port, "/v1/echo", b"x" * most).status == 200
    answer = ask(port, "/v1/echo", b"x" * (most + 1))
    assert answer.status == 413
    error = json.loads(answer.read())["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["code"] == "body_too_large"
    assert len(seen()) == 1


@pytest.mark.parametrize("path", ["/metrics", "/admin/models", "/dashboard", "/ready", "/", "/v2/echo"])
def test_what_is_not_the_api_stays_inside(fleet, seen, path):
    port, _ = fleet
    answer = ask(port, path, method="GET")
    assert answer.status == 404 and json.loads(answer.read())["error"]["code"] == "not_found"
    assert not seen()


def test_a_request_has_one_id_everywhere(fleet, seen):
    port, _ = fleet
    answer = ask(port, "/v1/echo", **{"X-Request-Id": "from-the-client"})
    assert answer.headers["X-Request-Id"] == "from-the-client"
    made = ask(port, "/v1/echo").headers["X-Request-Id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert {request_id for *_, request_id in seen()} == {"from-the-client", made}


def test_no_key_is_written_into_the_log(tmp_path):
    with replica() as one, nginx(tmp_path, (one.server_port, one.server_port)) as port:
        ask(port, "/v1/echo", Authorization="Bearer tl-secret").read()
    lines = (tmp_path / "access.log").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["/v1/echo"]  # and the checks of health are left out
    assert json.loads(lines[0])["replica"] == f"127.0.0.1:{one.server_port}"
    assert "tl-secret" not in "".join(path.read_text() for path in tmp_path.glob("*.log"))
