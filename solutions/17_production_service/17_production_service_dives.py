# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: What breaks under load? Deep dives
#     minutes: 40
# ---

# %% [markdown]
# # What breaks under load? Deep dives
#
# Five parts that most services get sooner or later: keys of clients, a drain before each stop, a cache of answers, a switch of
# models without an interruption, and a proxy in front of several replicas. There is nothing to hand in. Redis and NGINX
# are the real ones; if a machine does not have them, the cell says so.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import asyncio
import hashlib
import hmac
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import numpy as np
import threeloops.product
from threeloops.lab import calibration, figure, palette, predict, reveal, show, term
from threeloops.product.request import Sampling
from threeloops.product.service.models import RollingSwitch
from threeloops.product.service.response_cache import ResponseCache
from threeloops.simulation.event_loop import now, run


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port, process, seconds=20.0):
    """Until something listens there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args[0]} does not listen on port {port}; exit code {process.poll()}")


@contextmanager
def running(command, port):
    """A process that listens on `port`, until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(20)


# %% [markdown]
# ## Whose key is this?
#
# A client proves who it is with a key in the header `Authorization: Bearer sk-7f3a…`. The service stores only the SHA-256 of
# each key, so a stolen file is of no use. Nor may the time of a comparison tell how close a guess came: `==` stops at
# the first character that differs, and `hmac.compare_digest` reads to the end. So the key is compared with *every*
# stored one, even after a match.
#
# Plain SHA-256 is enough because keys are random: nobody tries 2¹²⁸ of them. Passwords are not random, so they need a slow
# hash such as scrypt. Keys belong in no log, no error message and no metric; log the client's name.


# %% tags=["demo"]
def find_client(authorization, keys):
    """The client of this header, or None. `keys`: the SHA-256 of each client's key."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        return None
    digest, found = hashlib.sha256(key.encode()).hexdigest(), None
    for client, stored in keys.items():
        if hmac.compare_digest(digest, stored):
            found = client
    return found


KEYS = {client: hashlib.sha256(key.encode()).hexdigest() for client, key in (("anna", "sk-1"), ("ben", "sk-2"))}
HEADERS = ("Bearer sk-1", "bearer sk-2", "Bearer sk-3", "Bearer ", "Basic sk-1", None, f"Bearer {KEYS['anna']}")
show.table(
    [(repr(header)[:40], find_client(header, KEYS) or "nobody: 401") for header in HEADERS], header=("header", "client")
)

# %% [markdown]
# The last header has the stored digest instead of the key, as a thief of the file would send it.
#
# ## Stopping without harm
#
# Before a planned stop an orchestrator sends a signal (SIGTERM). The process *drains*: it takes no new requests, finishes those
# that run, and exits. Streams that are not finished at the limit are cut off, and told so.
#
# *Worked example.* Three streams need 1, 3 and 60 s more, and the limit is 10 s. `drain` returns at 10 s with "finished", "finished"
# and "cut off after 10 s". If the third takes 0.5 s to send its last event when it is cancelled, it returns at 10.5 s.

# %% tags=["demo"]
predict(
    "cut_off",
    "Forty streams run when a drain of 10 s begins. They need another 8 s on average, with an exponential distribution, so a share "
    "of exp(−t/8) needs more than t seconds. How many of them are cut off?",
    axis=(1, 40),
)


async def drain(running, limit):
    """End all streams, and say what became of each. `running`: tasks by name."""
    tasks, reason = dict(running), f"cut off after {limit:g} s"
    if not tasks:
        return {}
    _, late = await asyncio.wait(tasks.values(), timeout=limit)  # raises nothing
    for task in late:
        task.cancel(reason)
    if late:
        await asyncio.wait(late)  # a task that was cut off may need time to clean up
    found = {}
    for name, task in tasks.items():
        if task.cancelled():
            found[name] = reason
        else:
            found[name] = f"failed: {task.exception()}" if task.exception() else "finished"
    return found


async def drains(streams, limit):
    """Drain streams {name: (seconds, seconds to clean up)}. Returns what became of each, and when it ended."""
    ends = {}

    async def one(name, seconds, cleanup):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(cleanup)  # sends its last event
            raise
        finally:
            ends[name] = now()

    running = {name: asyncio.create_task(one(name, *each)) for name, each in streams.items()}
    await asyncio.sleep(0)  # all of them begin
    return await drain(running, limit), ends, now()


# %% tags=["demo"] jupyter={"source_hidden": true}
rng = random.Random(3)
forty = {f"stream {number}": (rng.expovariate(1 / 8), 0.5) for number in range(40)}
became, ends, end = run(drains, forty, 10.0)
with reveal("cut_off"):
    cut = sum(text != "finished" for text in became.values())
    show.against_prediction(
        "cut_off", cut, source=f"virtual time; on average it is 40 · exp(−10/8) = {40 * np.exp(-10 / 8):.1f}"
    )
    plot, axes = figure(width=8.5, height=3.6)
    for place, name in enumerate(sorted(ends, key=lambda name: forty[name][0])):
        finished = became[name] == "finished"
        axes.barh([place], [ends[name]], height=0.7, color=palette.green if finished else palette.orange)
        if not finished:
            axes.barh(
                [place], [forty[name][0] - ends[name]], left=ends[name], height=0.7, color=palette.grey, alpha=0.25
            )
    axes.axvline(10, color=palette.vermillion, ls="--", lw=1)
    axes.text(10.7, 3, "cut off, and told so (0.5 s to say it)", color=palette.orange, va="center", weight="bold")
    axes.text(10.7, 7, "grey: what they would have needed", color=palette.grey, va="center")
    axes.set(xlim=(0, 40), xlabel="seconds after the signal", ylabel="streams", yticks=[])
    show.figure(plot, "Forty streams during a drain of 10 s: those that end in time, and those that are cut off")

# %% [markdown]
# The limit must be shorter than the time after which the orchestrator kills the process (`terminationGracePeriodSeconds`, 30 s
# unless you change it). Waiting for each stream in turn, `limit` seconds each, takes far too long. Not waiting for
# those that were cut off loses their last event.
#
# ## Answers given before
#
# At temperature 0 the same prompt should have the same answer, so the answer can be kept. The key must contain all that shapes the answer: the
# *version* of the model, the tokens of the prompt, and the parameters of sampling. If the version were missing, users would get
# answers of yesterday's model after a switch.
#
# A cache may be gone, slow, or hold nonsense. None of that may make a request fail, or slow down all of them. The course's
# `ResponseCache` therefore treats every error as a miss, waits 100 ms at most, and after three errors in a row it leaves Redis
# alone for some seconds (a *circuit breaker*).
#
# The cell asks for 200 answers, of which 50 are different, and ends the Redis process after 100 of them. An answer of the model
# takes 20 ms here.

# %% tags=["demo"]
predict(
    "hits",
    "200 requests, drawn from 50 different prompts at random; after 100 of them Redis is killed. How many are answered from the "
    "cache?",
)


async def ask_many(port, kill):
    cache = ResponseCache(f"redis://127.0.0.1:{port}/0", 60)
    rng, seconds, failed = np.random.default_rng(1), [], 0
    for number in range(200):
        if number == 100:
            kill()
        began = time.perf_counter()
        key = cache.key("tiny@1", [int(rng.integers(50)), 7, 7], Sampling(max_tokens=20, temperature=0.0))
        try:
            answer = await cache.get(key)
            if answer is None:
                await asyncio.sleep(0.02)  # the model
                await cache.put(key, b"an answer")
        except Exception:
            failed += 1
        seconds.append(1e3 * (time.perf_counter() - began))
    counts = cache.hits, cache.misses, cache.errors, failed
    await cache.close()
    return seconds, counts


# %% tags=["demo"] jupyter={"source_hidden": true}
def in_a_loop_of_its_own(coroutine):
    """The notebook has an event loop already, so this one runs in a thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(coroutine)))
    thread.start()
    thread.join()
    return found[0]


if shutil.which("redis-server") is None:
    print(
        "There is no redis-server on this machine, so this part was NOT run. On Debian and Ubuntu: apt install redis-server"
    )
else:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        with running(command, port) as redis_server:

            def kill():
                redis_server.kill()
                redis_server.wait(20)

            seconds, (hits, misses, errors, failed) = in_a_loop_of_its_own(ask_many(port, kill))
    with reveal("hits"):
        show.against_prediction("hits", hits, source="counted here, with a real Redis")
        plot, axes = figure(width=8.5, height=2.6)
        axes.scatter(range(200), seconds, s=8, color=palette.blue)
        axes.axvline(100, color=palette.vermillion, ls="--", lw=1)
        axes.annotate(" Redis is killed", (100, 0.5), xycoords=("data", "axes fraction"), color=palette.vermillion)
        axes.set(xlabel="request", ylabel="ms", yscale="log")
        show.figure(plot, "Time of each request, before and after Redis is killed")
        print(f"{hits} hits, {misses} misses, {errors} errors of Redis, {failed} failed requests")

# %% [markdown]
# After the kill every request takes as long as without a cache, and none fails. Only three attempts met an error; then the
# breaker opened, and one line went to the service's log.
#
# ## A new version while requests run
#
# The plain way to change a model is to stop the old one and start the new one. Loading takes a minute, and in this minute every
# request fails. A *rolling switch* starts the new engine beside the old one, sends new requests to it once it is ready, and stops
# the old engine when its last request has ended. For a while that takes the memory of both. If there is no room for two, use a second
# machine.
#
# The course's `RollingSwitch` is ordinary asyncio code, so it runs here in virtual time: 2 requests per second for 4 minutes, each
# taking 1 to 20 s; loading takes 45 s; the switch begins at 60 s.

# %% tags=["demo"]
predict(
    "refused",
    "2 requests per second. The old engine is stopped at 60 s as soon as its requests have ended (up to 20 s), and then the new one "
    "is loaded for 45 s. Requests that come meanwhile are refused. How many are?",
    axis=(0, 300),
)


class FakeEngine:
    def __init__(self, version):
        self.version, self.closed = version, False


async def load_engine(version):
    await asyncio.sleep(45.0 if version > 1 else 0.0)
    return FakeEngine(version)


async def stop_engine(engine):
    engine.closed = True


async def traffic(lease, change):
    """[(begin, end, version)] of each request; the version is None if it was refused, −1 if its engine went away."""
    rng, seen = np.random.default_rng(2), []

    async def client(moment, seconds):
        await asyncio.sleep(moment)
        try:
            async with lease() as engine:
                await asyncio.sleep(seconds)
                seen.append((moment, now(), -1 if engine.closed else engine.version))
        except RuntimeError:
            seen.append((moment, now(), None))

    async def changes():
        await asyncio.sleep(60)
        await change()

    moments = np.cumsum(rng.exponential(0.5, 480))
    async with asyncio.TaskGroup() as group:
        group.create_task(changes())
        for moment in moments:
            group.create_task(client(float(moment), float(rng.uniform(1, 20))))
    return sorted(seen)


async def rolling():
    switch = RollingSwitch(load_engine, stop_engine)
    await switch.to(1)
    return await traffic(switch.lease, lambda: switch.to(2))


async def stop_then_start():
    state = {"engine": FakeEngine(1), "users": 0}

    @asynccontextmanager
    async def lease():
        engine = state["engine"]
        if engine is None:
            raise RuntimeError("no engine")
        state["users"] += 1
        try:
            yield engine
        finally:
            state["users"] -= 1

    async def change():
        state["engine"] = None
        while state["users"]:
            await asyncio.sleep(0.1)
        state["engine"] = await load_engine(2)

    return await traffic(lease, change)


# %% tags=["demo"] jupyter={"source_hidden": true}
runs = {"stop, then start": run(stop_then_start), "rolling switch": run(rolling)}
with reveal("refused"):
    refused = {name: sum(version is None for _, _, version in seen) for name, seen in runs.items()}
    show.against_prediction("refused", refused["stop, then start"], source="virtual time")
    plot, rows = figure(2, 1, width=8.5, height=4.2, sharex=True)
    for axes, (name, seen) in zip(rows, runs.items(), strict=True):
        for version, color in ((1, palette.blue), (2, palette.green)):
            spans = [(place, begin, end) for place, (begin, end, v) in enumerate(seen) if v == version]
            axes.hlines(
                [p for p, _, _ in spans], [b for _, b, _ in spans], [e for _, _, e in spans], color=color, lw=0.8
            )
        none = [(place, begin) for place, (begin, _, v) in enumerate(seen) if v is None]
        axes.plot([b for _, b in none], [p for p, _ in none], "x", ms=3, color=palette.vermillion)
        axes.set_title(f"{name}: {refused[name]} refused", loc="left", size=10)
        axes.set_ylabel("request")
    rows[-1].set_xlabel("seconds (blue: old version, green: new version, ×: refused)")
    show.figure(plot, "Requests before, during and after a change of the model, in two ways")
    lost = sum(version == -1 for seen in runs.values() for _, _, version in seen)
    print(f"Requests whose engine was stopped under them: {lost}")

# %% [markdown]
# With a registry of versions (`threeloops.product.service.models.Registry`) the switch can go back as well: versions are folders with
# a manifest of hashes, publishing one is atomic, an incomplete model is refused with the name of the file that is missing, and a rollback
# makes the version before the active one.
#
# ## A proxy in front of replicas
#
# NGINX, Envoy or a cloud's load balancer stands in front. Their defaults are made for web pages, and several of them are wrong for streams of
# tokens. These lines of the course's `deploy/nginx/nginx.conf` matter:
#
# | directive | why |
# |---|---|
# | `proxy_buffering off` | otherwise tokens are collected into pages of 4 or 8 KiB, and the reader sees nothing for seconds |
# | `least_conn` | round robin does not see how long streams are, so one replica may get many of the long ones |
# | `proxy_next_upstream error timeout`, as by default | with `non_idempotent` a POST that a replica has received is sent to another one as well, and is computed and paid for twice |
# | `max_fails=2`, `fail_timeout=5s` | by default a single failure keeps a replica out for 10 s |
# | `proxy_read_timeout 150s` | the default of 60 s ends a stream whose first token takes longer; a heartbeat (exercise 4) also helps |
# | `client_header_timeout`, `client_body_timeout` | the first is for the whole header and the second for the gap between two reads of a body; by default a client that stops sending holds a connection for 60 s |
# | `client_max_body_size 1m`, as by default | a larger body is refused here; the limit of the service must be the same |
# | `limit_req` with `limit_req_status 429` | a flood stops here; the default status is 503, which blames the service |
#
# The cell starts real NGINX in front of two small replicas, sends 300 requests, and kills one replica after 100 of them.

# %% tags=["demo"]
predict("errors", "How many of the 300 requests fail, if a replica disappears after 100 of them?")


REPLICA = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"replica": sys.argv[1]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


# %% tags=["demo"] jupyter={"source_hidden": true}
CONFIGURATION = Path(threeloops.product.__file__).parent / "deploy" / "nginx" / "nginx.conf"


def configuration(port, ports):
    """The course's file, with other ports and one worker."""
    text = CONFIGURATION.read_text()
    text = re.sub(r"listen 8080;", f"listen 127.0.0.1:{port};", text)
    for old, new in zip((8001, 8002), ports, strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    return re.sub(r"rate=\d+r/s", "rate=100000r/s", text).replace("worker_processes auto", "worker_processes 1")


if shutil.which("nginx") is None:
    print("There is no nginx on this machine, so this part was NOT run. On Debian and Ubuntu: apt install nginx")
else:
    with tempfile.TemporaryDirectory() as folder:
        port, ports = free_port(), [free_port(), free_port()]
        file = Path(folder) / "nginx.conf"
        file.write_text(configuration(port, ports))
        options = ["-p", folder, "-c", str(file), "-g", "daemon off;"]
        with (
            running([sys.executable, "-c", REPLICA, "A", str(ports[0])], ports[0]),
            running([sys.executable, "-c", REPLICA, "B", str(ports[1])], ports[1]) as second,
            running(["nginx", *options], port),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
        ):
            answers = []
            for number in range(300):
                if number == 100:
                    second.kill()
                    second.wait(20)
                answer = client.post("/v1/completions", json={"prompt": "Hello"})
                answers.append(answer.json().get("replica", answer.status_code))
    with reveal("errors"):
        show.against_prediction("errors", sum(answer not in ("A", "B") for answer in answers), source="real NGINX")
        show.table(
            [
                (
                    part,
                    answers[span].count("A"),
                    answers[span].count("B"),
                    sum(a not in ("A", "B") for a in answers[span]),
                )
                for part, span in (("first 100", slice(0, 100)), ("other 200, B is killed", slice(100, 300)))
            ],
            header=("requests", "replica A", "replica B", "failed"),
            caption="A connection that is refused is tried at the other replica, because nothing was sent yet",
        )

# %% [markdown]
# A replica that dies in the middle of an answer is another matter. NGINX has already sent a part of it, and the request may have
# been computed in part, so it must not be repeated silently: the client sees an error and decides. Lab 18 asks who may repeat what.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("drain")
term("readiness probe")
calibration()
