import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from threeloops.product.service.observability import configure_logs

log = logging.getLogger("threeloops.test")
KEY = "tl-dGhpcyBpcyBhIHNlY3JldCBrZXkgb2YgMzIgYnl0ZXM"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "serve.log"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_a_line_of_json_with_its_fields(path):
    with configure_logs(path) as logs:
        log.info("request", extra={"request_id": "r1", "status": 200, "seconds": 0.25, "stream": True})
        log.debug("not at this level")
    (line,) = lines(path)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "event": "request", "logger": "threeloops.test",
        "request_id": "r1", "status": 200, "seconds": 0.25, "stream": True,
    }  # fmt: skip
    assert logs.dropped == 0


def test_what_a_client_sent_is_not_written_whoever_passes_it(path):
    with configure_logs(path):
        log.info("request", extra={"prompt": "my diary", "headers": {"authorization": KEY}, "body": b"my diary"})
        log.warning("refused Authorization: Bearer %s; api_key=%s", KEY, "abc123", extra={"client": KEY})
        log.error("cannot reach redis://user:hunter2@localhost:6379/0", extra={"path": f"/v1?key={KEY}"})
    text = path.read_text()
    for secret in ("my diary", KEY, "abc123", "hunter2", "headers"):
        assert secret not in text
    assert "localhost:6379/0" in text


def test_of_an_exception_the_type_and_the_place_are_written_but_not_the_message(path):
    def fail():
        raise ValueError("my diary")

    with configure_logs(path):
        try:
            fail()
        except ValueError:
            log.exception("a request failed")
    (line,) = lines(path)
    assert (line["event"], line["exception"]) == ("a request failed", "ValueError")
    assert line["at"][-1].endswith("fail")
    assert "my diary" not in path.read_text()


def test_nobody_can_forge_a_line_or_write_a_long_one(path):
    with configure_logs(path):
        log.info('x\n{"level": "error"}\r\u2028', extra={"model": "é" * 10**6, "seconds": float("nan")})
    (line,) = lines(path)
    assert line["event"].startswith("x\n{")
    assert len(line["model"]) == 1000
    assert line["seconds"] == "nan"


def test_what_cannot_be_formatted_is_dropped_and_counted(path):
    class Broken:
        def __str__(self):
            raise RuntimeError

    with configure_logs(path) as logs:
        log.info("%s", Broken())
        log.info("%d", "three")
        log.info("fine")
    assert [line["event"] for line in lines(path)] == ["fine"]
    assert logs.dropped == 2


def test_a_full_disk_drops_lines_counts_them_and_raises_nothing():
    """/dev/full refuses every write with ENOSPC."""
    with configure_logs("/dev/full") as logs:
        for _ in range(100):
            log.info("request")
    assert logs.dropped == 100


def test_a_disk_that_is_full_for_a_while_leaves_whole_lines(path, monkeypatch):
    real, room = os.write, 30

    def write(file, data):
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(file, data[:room])
        room -= taken
        return taken

    monkeypatch.setattr(os, "write", write)
    with configure_logs(path) as logs:
        log.info("cut off")
        log.info("no room")
        wait_for(lambda: logs.dropped == 2)
        room = 10**6
        log.info("room again")
        log.info("and again")
    cut, *whole = path.read_text().splitlines()
    assert len(cut) == 30
    assert [json.loads(line)["event"] for line in whole] == ["room again", "and again"]
    assert logs.dropped == 2


def test_a_file_that_was_moved_or_a_folder_that_is_gone(path, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    with configure_logs(folder / "serve.log") as logs:
        log.info("one")
        wait_for(lambda: (folder / "serve.log").read_text().count("\n") == 1)
        (folder / "serve.log").rename(folder / "serve.log.1")
        log.info("two")
        wait_for(lambda: (folder / "serve.log").exists() and (folder / "serve.log").read_text().count("\n") == 1)
        (folder / "serve.log").unlink()
        (folder / "serve.log.1").unlink()
        folder.rmdir()
        log.info("three")
    assert logs.dropped == 1


def test_a_file_that_cannot_be_opened_is_refused_at_the_start(tmp_path):
    with pytest.raises(OSError, match=r"logs cannot be written here: No such file .*nowhere"):
        configure_logs(tmp_path / "nowhere" / "serve.log")
    with pytest.raises(OSError, match="Is a directory"):
        configure_logs(tmp_path)


def test_a_reader_that_is_stuck_holds_up_nobody(monkeypatch):
    """stderr is a pipe that nobody reads: once it is full, writing to it would wait for ever."""
    read, write = os.pipe()
    with open(write, "w") as stuck, open(read) as reader:
        monkeypatch.setattr(sys, "stderr", stuck)
        logs = configure_logs()
        for number in range(30_000):
            log.info("request %d", number)
        assert logs.dropped > 0
        drain = threading.Thread(target=lambda: [None for _ in reader])
        drain.start()
        logs.close()
        stuck.close()
        drain.join()


def test_a_stderr_that_is_closed_or_no_file(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (None, io.StringIO(), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        with configure_logs() as logs:
            log.info("request")
        assert logs.dropped == 1


def test_many_threads_lose_no_line(path):
    with configure_logs(path) as logs:
        threads = [
            threading.Thread(target=lambda n=n: [log.info("e", extra={"pid": 1000 * n + i}) for i in range(500)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(line["pid"] for line in lines(path)) == sorted(1000 * n + i for n in range(4) for i in range(500))
    assert logs.dropped == 0


def test_warnings_of_other_libraries_go_the_same_way_without_what_they_quote(path):
    """Else Python's last resort writes them to stderr, and waits for whoever reads it."""
    with configure_logs(path):
        logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: ValueError('my diary')")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").info("Started server process")
    events = [(line["logger"], line["event"]) for line in lines(path)]
    assert events == [
        ("asyncio", "Task exception was never retrieved"), ("uvicorn.error", "Invalid HTTP request received."),
    ]  # fmt: skip


def test_a_warning_that_is_repeated_is_counted_instead_and_requests_never_are(path, monkeypatch):
    def repeat(times):
        for number in range(times):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
            log.warning("request", extra={"status": number})

    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with configure_logs(path) as logs:
        repeat(1000)
        now += 61
        repeat(1)
        repeat(99)
    others = [line.get("repeated", 0) for line in lines(path) if line["logger"] == "uvicorn.error"]
    assert len(others) <= 21 and len(others) + sum(others) == 1100, "each line is written or counted"
    assert [line["status"] for line in lines(path) if line["logger"] == "threeloops.test"] == [
        *range(1000), 0, *range(99),
    ]  # fmt: skip
    assert logs.dropped == 0


def test_a_stuck_reader_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("threeloops.product.service.observability.logs._END_SECONDS", 0.05)
    read, write = os.pipe()
    with open(write, "w") as stuck:
        monkeypatch.setattr(sys, "stderr", stuck)
        logs = configure_logs()
        for number in range(30_000):
            log.info("request %d", number)
        began = time.monotonic()
        logs.close()
        assert time.monotonic() - began < 2
        os.close(read)  # ends the write
        logs._lines.put(None, timeout=60)
        logs._thread.join(60)


def test_afterwards_logging_is_as_it_was(path):
    loggers = [logging.getLogger(name) for name in ("threeloops", None)]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    with configure_logs(path) as logs:
        assert logs in logging.getLogger().handlers
    assert [(logger.level, logger.propagate, logger.handlers) for logger in loggers] == before
    logs.close()


def test_who_forgets_to_close_loses_nothing_at_the_end(path):
    text = f"""
import logging
from threeloops.product.service.observability import configure_logs
configure_logs({str(path)!r})
for number in range(1000):
    logging.getLogger("threeloops.x").info("request")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines(path)) == 1000


def wait_for(condition):
    """Bounded: 10 s."""
    for _ in range(10_000):
        try:
            if condition():
                return
        except OSError:
            pass
        threading.Event().wait(0.001)
    pytest.fail("waited for 10 s")
