"""A real JupyterLab on loopback, for the length of one test module."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 600


@contextmanager
def jupyter_lab(root: Path, runtime: Path, **environment: str) -> Iterator[str]:
    """JupyterLab on a free port of loopback; yields its base URL with the token's query left to the caller."""
    runtime.mkdir(parents=True)
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += ["--ServerApp.port=0", f"--ServerApp.root_dir={root}", "--LabApp.expose_app_in_browser=True"]
    command += ["--IdentityProvider.token=", "--ServerApp.password="]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime / "config"), "PATH": path}
    with (runtime / "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=root, stdout=log, stderr=log, env={**os.environ, **own, **environment}, start_new_session=True
        )
        try:
            yield _url(server, runtime)
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _url(server: subprocess.Popen, runtime: Path) -> str:
    """The server writes its address into its runtime folder once it listens."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(file.read_text())["url"]
            except (ValueError, KeyError):
                break
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start: {(runtime / 'log').read_text()[-2000:]}")
