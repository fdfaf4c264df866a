"""A real redis-server on a free port of this machine, which keeps nothing on disk."""

import os
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from threeloops.product.fleet.real.waiting import free_port


class RealRedis:
    """Started by the constructor. `kill` ends it like a power cut, `start` brings it back on the same port, empty."""

    def __init__(self):
        if shutil.which("redis-server") is None:
            message = "redis-server is not installed (Debian: apt install redis-server)"
            pytest.fail(message) if os.environ.get("THREELOOPS_CI") else pytest.skip(message)
        self.port = free_port()
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
        end = time.monotonic() + 20
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(5) == b"+PONG":
                        return
            except OSError:
                time.sleep(0.01)
        self.kill()
        pytest.fail(f"redis-server did not answer on port {self.port} within 20 s")

    def kill(self):
        self._process.kill()
        self._process.wait()
