"""The service as an operator starts it: a process that loads, drains, and says in a sentence what is wrong."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from real_service import PATIENCE, ServiceProcess, event_data, eventually, long_model
from threeloops.product.service.__main__ import main
from threeloops.product.service.server import _bounds
from threeloops.product.service.settings import SettingsError

ENDLESS = {"model": "long", "prompt": "a", "max_tokens": 16000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return long_model(tmp_path_factory.mktemp("models") / "long")


def test_sigterm_lets_answers_end_refuses_new_ones_and_says_why_it_cuts_the_rest(folder, tmp_path):
    log = tmp_path / "serve.log"
    settings = {"model": folder, "drain_seconds": 1, "largest_max_tokens": 16000, "log_file": log}
    with ServiceProcess(**settings) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        server.wait_ready()
        with ThreadPoolExecutor(1) as pool, client.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            short = ENDLESS | {"max_tokens": 20, "stream": False}
            ends = pool.submit(client.post, "/v1/completions", json=short)
            eventually(lambda: "num_requests_running" in client.get("/metrics").text, "metrics")
            assert ends.result(PATIENCE).status_code == 200
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: client.get("/ready").json()["status"] == "draining", "it drains")
            refused = client.post("/v1/completions", json=ENDLESS)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/health").status_code == 200, "liveness does not end with readiness"
            events = event_data(text + "".join(pieces))
        assert events[-1]["error"]["code"] == "draining", "the stream ended without a reason"
        assert len(events) > 2
        code, errors = server.ended()
    assert (code, errors) == (0, "")
    assert '"code": "draining"' in log.read_text()


def children_of(server):
    return subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True).stdout.split()


def test_one_process_from_loading_to_an_idle_end(folder, tmp_path):
    """One start for all of these, as each costs seconds."""
    log = tmp_path / "serve.log"
    with loading(folder, tmp_path / "slow", log_file=log) as (server, client, loads):
        while_a_model_loads_probes_are_answered_and_requests_are_refused(client)
        loads()
        server.wait_ready()
        assert client.get("/health/startup").status_code == 200
        secrets = say_what_nobody_must_see(client)
        sigterm_ends_an_idle_service_with_its_engine(server)
    text = log.read_text()
    assert '"status": 200' in text and '"status": 404' in text and '"prompt_tokens": 15' in text
    assert not [word for word in secrets if word in text]


@contextlib.contextmanager
def loading(folder, slow, **settings):
    """A service, a client, and what lets its model be loaded: the model's config.json is a pipe."""
    slow.mkdir()
    for file in folder.iterdir():
        if file.name != "config.json":
            (slow / file.name).symlink_to(file)
    os.mkfifo(slow / "config.json")

    def loads():
        with (slow / "config.json").open("wb") as pipe:  # whoever reads it next finds a file
            os.replace(shutil.copy(folder / "config.json", slow / "next"), slow / "config.json")
            pipe.write((folder / "config.json").read_bytes())

    with (
        ServiceProcess(model=slow, **settings) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        yield server, client, loads


def while_a_model_loads_probes_are_answered_and_requests_are_refused(client):
    assert client.get("/health").status_code == 200
    assert client.get("/health/startup").status_code == 503
    assert client.get("/ready").json() == {"status": "loading", "reason": "the model is being loaded"}
    refused = client.post("/v1/completions", json=ENDLESS | {"model": "slow"})
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert client.get("/metrics").status_code == 200


def say_what_nobody_must_see(client):
    """A key, a prompt and a name, which are returned, in all places where they may stand."""
    key = "tl-this-is-a-key-that-nobody-must-see"
    headers = {"authorization": f"Bearer {key}"}
    asked = {"model": "slow", "prompt": "a secret prompt", "max_tokens": 1, "user": "ada"}
    assert client.post(f"/v1/completions?key={key}", json=asked, headers=headers).status_code == 200
    client.get(f"/v1/{key}", headers=headers)
    return key, "secret", "ada"


def sigterm_ends_an_idle_service_with_its_engine(server):
    (engine,) = children_of(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == (0, "")
    assert not os.path.exists(f"/proc/{engine}")


def test_a_service_that_still_loads_and_has_no_file_descriptor_to_spare_ends_at_once(tmp_path):
    (tmp_path / "slow").mkdir()
    os.mkfifo(tmp_path / "slow" / "config.json")
    with ServiceProcess(model=tmp_path / "slow", open_files=256) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 503
        with contextlib.ExitStack() as stack:
            address = "127.0.0.1", int(server.url.rpartition(":")[2])
            for _ in range(400):
                stack.enter_context(socket.create_connection(address, PATIENCE))

            def answer():
                with socket.create_connection(address, PATIENCE) as late:
                    return b"too_many_connections" in late.recv(4096)

            eventually(answer, "one more is told that it is one too many")
        eventually(lambda: httpx.get(f"{server.url}/ready").status_code == 503, "it goes on afterwards")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == (0, ""), "each connection was a line in its log"


def test_connections_leave_file_descriptors_for_everything_else():
    assert _bounds(1000, 1024) == (32, 768)
    assert _bounds(500, 1024) == (32, 500)
    assert _bounds(1000, 1 << 20) == _bounds(1000, -1) == (128, 1000)
    with pytest.raises(SettingsError, match="may have 64 files open: expected at least 128"):
        _bounds(1000, 64)
    for open_files in range(128, 3000):
        at_once, most = _bounds(10_000, open_files)
        assert 1 <= most <= open_files - 5 * at_once - 90


def test_a_model_that_cannot_be_loaded_ends_the_service_with_the_reason():
    with ServiceProcess(model="gpt-4") as server:
        code, errors = server.ended()
    assert (code, errors.count("\n")) == (2, 1)
    assert (
        "the model 'gpt-4' cannot be loaded: 'gpt-4' is not a folder, a GGUF file, or one of model, draft, tiny"
        in errors
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"blocks": 0}, "THREELOOPS_SERVE_BLOCKS = 0: expected it to be greater than or equal to 1"),
        ({"host": "256.1.1.1"}, "host = '256.1.1.1'"),
        ({"keys_file": "none.toml"}, "none.toml: the file of API keys cannot be read"),
        ({"registry": "/dev/null/registry"}, "registry = '/dev/null/registry'"),
        ({"redis_url": "redis://localhost/0?db=abc"}, "THREELOOPS_SERVE_REDIS_URL = (not shown): expected a URL"),
        ({"log_file": "/nowhere/serve.log"}, "log_file = '/nowhere/serve.log': logs cannot be written here"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence_and_exit_code_2(settings, sentence, monkeypatch, capsys):
    for name, value in settings.items():
        monkeypatch.setenv(f"THREELOOPS_SERVE_{name.upper()}", str(value))
    assert main(["--port", "0"]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and said.err.count("\n") == 1 and said.out == ""


def test_a_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "threeloops.commands.program", "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 2
    assert f"port = {port} of 127.0.0.1: another program uses it" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_full_disk_for_logs_stops_nothing_and_an_engine_does_not_outlive_its_front():
    with ServiceProcess(log_file="/dev/full") as server:
        server.wait_ready()
        for _ in range(3):
            asked = {"model": "tiny", "prompt": "a", "max_tokens": 1}
            assert httpx.post(f"{server.url}/v1/completions", json=asked, timeout=PATIENCE).status_code == 200

        def dropped():
            lines = httpx.get(f"{server.url}/metrics").text.splitlines()
            counts = [line for line in lines if line.startswith("threeloops:log_lines_dropped_total")]
            return float(counts[0].split()[-1]) >= 3

        eventually(dropped, "the lines that were dropped are counted")
        (engine,) = children_of(server)
        server.process.kill()
        server.ended()
        eventually(lambda: not os.path.exists(f"/proc/{engine}"), "the engine's process has ended")


def test_the_front_needs_no_torch():
    asked = "import sys, threeloops.product.service.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=PATIENCE).returncode == 0
