"""What the attacks aim at."""

import os
import socket
from pathlib import Path

import pytest
import threeloops_grader


@pytest.fixture(scope="module")
def aims():
    """What attacks aim at, by the words that stand for it in their text; ROOT, the course, is added by each test."""
    name = f"threeloops-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        port = str(server.getsockname()[1])
        yield {"COURSE": str(Path(threeloops_grader.__file__).parent), "PORT": port, "NAME": name}
