"""NGINX in front of replicas: a configuration made from data, checked before use, and changed without interruption.

Everything is in one folder and needs no privileges. A change is a reload: NGINX starts new workers with the new
configuration, and the old workers finish their requests and end. `serve` returns when no old worker accepts connections
any more, so a removed replica may be told to end then. A request on an older connection may still go to the removed
replica. If the replica has already closed its port, NGINX asks another of the previous replicas.

These settings matter for a model's answers. A POST goes to another replica only if nothing of it was sent, for example
after a refused connection (`proxy_next_upstream error timeout` without `non_idempotent`). Tokens are sent as they
come (`proxy_buffering off`). A client that leaves closes its connection to the replica. NGINX's own errors have the
format of OpenAI's. A longer configuration for production, with limits per address, is in `product/deploy/nginx`.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from threeloops.files import replace_text
from threeloops.product.fleet.real.waiting import free_port, wait_until

__all__ = ["Nginx", "NginxError", "Proxy", "configuration"]

_CONFIGURATION = """\
# Made by threeloops.product.fleet.real.nginx: changes are overwritten.
{user}daemon off;
worker_processes 1;
worker_shutdown_timeout {shutdown:g}s;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server_tokens off;
    default_type application/json;
    map $http_x_request_id $id {{ default $http_x_request_id; "" $request_id; }}
{upstream}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 1m;
        client_body_buffer_size 1m;
        location = /generation {{ return 200 "{generation}"; }}
        location / {{
            {pass_to}
        }}
        error_page 502 504 @broken;
        location @broken {{
            add_header X-Request-Id $id always;
            return 502 '{broken}';
        }}
        error_page 503 @none;
        location @none {{
            add_header X-Request-Id $id always;
            add_header Retry-After 1 always;
            return 503 '{none}';
        }}
    }}
}}
"""

_PASS = """\
proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header X-Request-Id $id;
            add_header X-Request-Id $id always;
            proxy_buffering off;
            proxy_next_upstream error timeout;
            proxy_next_upstream_tries {tries};
            proxy_connect_timeout {connect:g}s;
            proxy_send_timeout {send:g}s;
            proxy_read_timeout {read:g}s;"""


def _error(message: str) -> str:
    """The body of an OpenAI error."""
    return json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": "no_replica"}})


class NginxError(RuntimeError):
    """NGINX is not installed, refuses the configuration, or does not run: its own words."""


@dataclass(frozen=True)
class Proxy:
    """Port of NGINX on this machine, and how patient it is with replicas, in seconds.

    `read_seconds` is the longest time between two tokens, or before the first one. A replica that fails once is left
    out for `down_for` seconds, unless all are.
    """

    port: int
    connect_seconds: float = 1.0
    send_seconds: float = 10.0
    read_seconds: float = 150.0
    down_for: float = 1.0
    shutdown_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"port = {self.port!r}: expected a port from 1 to 65535")
        for name in ("connect_seconds", "send_seconds", "read_seconds", "down_for", "shutdown_seconds"):
            if not 0 < getattr(self, name) < 86_400:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected seconds, above 0 and below a day")


def configuration(proxy: Proxy, replicas: Sequence[int], generation: int = 0) -> str:
    """Return NGINX's configuration for replicas on these ports of this machine. With no replicas, every request is
    answered 503.

    `generation` is the answer of /generation, which shows the configuration that serves.
    """
    if len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas = {list(replicas)}: expected each port once")
    servers = "".join(
        f"        server 127.0.0.1:{port} max_fails=1 fail_timeout={proxy.down_for:g}s;\n" for port in replicas
    )
    upstream = (
        f"    upstream replicas {{\n        least_conn;\n{servers}        keepalive 64;\n    }}" if replicas else ""
    )
    pass_to = _PASS.format(
        tries=len(replicas), connect=proxy.connect_seconds, send=proxy.send_seconds, read=proxy.read_seconds
    )
    return _CONFIGURATION.format(
        user="user root;\n" if os.geteuid() == 0 else "",  # else its workers could not enter the folder
        shutdown=proxy.shutdown_seconds,
        upstream=upstream,
        port=proxy.port,
        generation=generation,
        pass_to=pass_to if replicas else "return 503;",
        broken=_error("the replica broke off; the request may have been started, and was not repeated"),
        none=_error("no replica is ready"),
    )


class Nginx:
    """One NGINX, which `with` starts and stops. `folder` has its configuration and logs."""

    def __init__(self, folder: Path, proxy: Proxy | None = None) -> None:
        self.folder, self.proxy = folder, proxy or Proxy(free_port())
        self.replicas: tuple[int, ...] = ()
        self._generation = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    def __enter__(self) -> "Nginx":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(())
        self._process = subprocess.Popen(
            [_program(), *self._arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait_for_generation()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()  # at once; QUIT would wait for requests
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def serve(self, replicas: Sequence[int]) -> None:
        """Pass requests to these ports from now on. Returns when no new connection can reach the previous ports."""
        process = self._running()
        before = psutil.Process(process.pid).children()
        self._write(replicas)
        process.send_signal(signal.SIGHUP)
        self._wait_for_generation()
        wait_until(
            lambda: not any(map(_takes_requests, before)), 10, lambda: f"NGINX kept its old workers; {self._said()}"
        )

    def _write(self, replicas: Sequence[int]) -> None:
        """Write the configuration and check it. Raises NginxError, and keeps the one before, if NGINX refuses it."""
        file = self.folder / "nginx.conf"
        made = configuration(self.proxy, replicas, self._generation + 1)
        candidate = self.folder / "candidate.conf"
        replace_text(candidate, made)
        checked = subprocess.run(
            [_program(), "-t", "-p", str(self.folder), "-c", str(candidate), "-e", "error.log"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if checked.returncode:
            raise NginxError(f"nginx -t refuses the configuration: {checked.stderr.strip()}")
        candidate.replace(file)
        self.replicas = tuple(replicas)
        self._generation += 1

    @property
    def _arguments(self) -> list[str]:
        return ["-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", "error.log"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise NginxError(f"NGINX does not run; {self._said()}")
        return self._process

    def _wait_for_generation(self) -> None:
        def serves() -> bool:
            self._running()
            return _get(self.proxy.port, "/generation") == str(self._generation)

        wait_until(serves, 20, lambda: f"NGINX does not serve its new configuration; {self._said()}")

    def _said(self) -> str:
        with suppress(OSError):
            return f"its error.log ends with: {(self.folder / 'error.log').read_text(errors='replace')[-600:]}"
        return "it has written no error.log"


def _program() -> str:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NginxError("nginx is not installed: `apt-get install nginx-light` (or nginx) brings it")
    return program


def _takes_requests(worker: psutil.Process) -> bool:
    try:
        return worker.is_running() and "shutting down" not in " ".join(worker.cmdline())
    except psutil.NoSuchProcess:
        return False


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
