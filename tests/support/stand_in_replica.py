"""A replica without a model, for tests of what stands in front of replicas: starts in a tenth of a second.

    python stand_in_replica.py PORT [load_seconds]

It has /health, /ready, /metrics and /v1/completions, plain and streaming; a token takes `token_seconds` of the request.
A stream with `wait` gives one token and goes on after POST /go. SIGTERM drains. What it did is printed: "begun ID",
"done ID", "left ID" for a client that went away, with the request's X-Request-Id.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1])
READY_AT = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
go, draining, lock = threading.Event(), threading.Event(), threading.Lock()
outstanding = 0


def say(word, name):
    os.write(1, f"{word} {name}\n".encode())  # at once, as several threads do


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body go in one piece, so that an answer is not cut off between them

    def log_message(self, *_):
        pass

    def do_GET(self):
        ready = time.monotonic() >= READY_AT and not draining.is_set()
        if self.path == "/metrics":
            self._answer(200, f"vllm:num_requests_running {outstanding}\nvllm:num_requests_waiting 0\n", "text/plain")
        else:
            self._answer(200 if self.path == "/health" or ready else 503, "{}")

    def do_POST(self):
        global outstanding
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        if self.path == "/go":
            go.set()
            return self._answer(200, "{}")
        with lock:
            refused = draining.is_set()
            outstanding += not refused
        if refused:
            return self._answer(503, '{"error": {"code": "draining"}}')
        try:
            return self._complete(asked)
        finally:
            with lock:
                outstanding -= 1

    def _complete(self, asked):
        name = self.headers.get("x-request-id", "?")
        say("begun", name)
        tokens, seconds = asked.get("max_tokens", 4), asked.get("token_seconds", 0.005)
        if not asked.get("stream"):
            time.sleep(tokens * seconds)
            say("done", name)
            return self._answer(200, json.dumps({"id": name, "port": PORT, "choices": [{"text": "x" * tokens}]}))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for number in range(tokens):
                self.wfile.write(b"data: %d\n\n" % number)
                self.wfile.flush()
                if asked.get("wait") and number == 0:
                    go.wait(60)
                time.sleep(seconds)
            say("done", name)
        except OSError:
            say("left", name)
        self.close_connection = True
        return None

    def _answer(self, status, text, kind="application/json"):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def drain(*_):
    draining.set()
    threading.Thread(target=end_when_idle).start()


def end_when_idle():
    while outstanding:
        time.sleep(0.01)
    time.sleep(0.05)  # the last answer is on its way
    os._exit(0)


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


server = Server(("127.0.0.1", PORT), Handler)
signal.signal(signal.SIGTERM, drain)
server.serve_forever(0.05)
