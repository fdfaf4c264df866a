"""A real NGINX: what it passes on, to whom, when it repeats a request and when it does not."""

import socket
from contextlib import contextmanager

import httpx
import pytest
from real_fleet import Load, done_counts, needs_nginx, stand_in
from threeloops.product.fleet import Probe, Probes
from threeloops.product.fleet.real import Container, Nginx, NginxError, Proxy, configuration, scrape
from threeloops.product.fleet.real.waiting import free_port, wait_until

ASK = {"max_tokens": 3}


@contextmanager
def replicas(folder, number):
    """Processes that answer, and are gone afterwards."""
    probes = Probes(readiness=Probe("/ready"))
    found = [Container(f"replica-{each}", stand_in(), folder, probes, 0.0) for each in range(number)]
    try:
        for each in found:
            each.tick(0.0)
        for each in found:
            wait_until(lambda each=each: scrape(each.port) == 0, 30, lambda each=each: each.log.read_text())
        yield found
    finally:
        for each in found:
            each.kill()
            each.end()


@pytest.fixture
def nginx(tmp_path):
    with Nginx(tmp_path / "nginx", Proxy(free_port(), read_seconds=20)) as running:
        yield running


def test_a_configuration_is_a_function_of_its_data():
    proxy = Proxy(8080, down_for=2.5)
    made = configuration(proxy, [8001, 8002], 7)
    assert made == configuration(proxy, [8001, 8002], 7)
    assert made.count("server 127.0.0.1:") == 2 and "server 127.0.0.1:8002 max_fails=1 fail_timeout=2.5s;" in made
    for line in ("least_conn;", "proxy_buffering off;", "proxy_next_upstream error timeout;", 'return 200 "7";'):
        assert line in made
    assert "non_idempotent" not in made, "a POST that was sent would be repeated"
    assert "proxy_pass" not in configuration(proxy, [])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Proxy(0), "port = 0"),
        (lambda: Proxy(80, read_seconds=0), "read_seconds = 0"),
        (lambda: configuration(Proxy(80), [1, 2, 1]), r"replicas = \[1, 2, 1\]: expected each port once"),
    ],
)
def test_settings_out_of_range_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_without_nginx_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(NginxError, match="apt-get install"):
        Nginx(tmp_path).__enter__()


@needs_nginx
def test_a_configuration_that_nginx_refuses_is_not_used(nginx, monkeypatch):
    kept = (nginx.folder / "nginx.conf").read_text()
    monkeypatch.setattr("threeloops.product.fleet.real.nginx.configuration", lambda *_: "events {} nonsense;")
    with pytest.raises(NginxError, match='nginx -t refuses the configuration: .*unknown directive "nonsense"'):
        nginx.serve([8001])
    assert (nginx.folder / "nginx.conf").read_text() == kept and nginx.replicas == ()


@needs_nginx
def test_a_port_in_use_is_named_by_nginx(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(NginxError, match="Address already in use"), Nginx(tmp_path, Proxy(taken.getsockname()[1])):
            pass


@needs_nginx
def test_without_replicas_there_is_an_error_that_says_when_to_come_back(nginx):
    answer = httpx.post(f"{nginx.url}/v1/completions", json=ASK)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["message"] == "no replica is ready" and answer.headers["x-request-id"]


@needs_nginx
def test_requests_go_to_all_replicas_with_their_id(nginx, tmp_path):
    with replicas(tmp_path, 2) as (one, two):
        nginx.serve([one.port, two.port])
        answers = [
            httpx.post(f"{nginx.url}/v1/completions", json=ASK, headers={"X-Request-Id": f"own-{number}"})
            for number in range(8)
        ]
    assert {each.json()["port"] for each in answers} == {one.port, two.port}
    assert [each.json()["id"] for each in answers] == [f"own-{number}" for number in range(8)]
    assert [each.headers["x-request-id"] for each in answers] == [f"own-{number}" for number in range(8)]
    assert done_counts(tmp_path) == {f"own-{number}": 1 for number in range(8)}


@needs_nginx
def test_a_token_arrives_before_the_next_one_is_computed(nginx, tmp_path):
    """The replica goes on only after the client has its first token, so a buffer anywhere would end in a timeout."""
    with replicas(tmp_path, 1) as (one,):
        nginx.serve([one.port])
        body = {"max_tokens": 3, "stream": True, "wait": True}
        with httpx.stream("POST", f"{nginx.url}/v1/completions", json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "data: 0"
            httpx.post(f"http://127.0.0.1:{one.port}/go")
            assert [line for line in lines if line] == ["data: 1", "data: 2"]


@needs_nginx
def test_a_client_that_leaves_a_stream_is_noticed_by_the_replica(nginx, tmp_path):
    with replicas(tmp_path, 1) as (one,):
        nginx.serve([one.port])
        body, headers = {"max_tokens": 100_000, "stream": True}, {"X-Request-Id": "gone"}
        with httpx.stream("POST", f"{nginx.url}/v1/completions", json=body, headers=headers) as answer:
            assert next(answer.iter_lines()) == "data: 0"
        wait_until(lambda: done_counts(tmp_path, "left")["gone"] == 1, 20, lambda: "the replica went on")


@needs_nginx
def test_a_replica_that_is_not_there_costs_nobody_an_answer(nginx, tmp_path):
    """A connection that is refused has carried nothing, so another replica is asked."""
    with replicas(tmp_path, 1) as (one,):
        nginx.serve([free_port(), one.port, free_port()])
        answers = [httpx.post(f"{nginx.url}/v1/completions", json=ASK) for _ in range(12)]
    assert {each.status_code for each in answers} == {200}


@needs_nginx
def test_a_post_that_was_sent_and_broken_off_is_an_error_and_is_not_repeated(nginx, tmp_path):
    with replicas(tmp_path, 2) as found:
        nginx.serve([each.port for each in found])
        body = {"max_tokens": 100, "token_seconds": 0.5}
        with Load(nginx.url, clients=1, body=body) as load:
            wait_until(lambda: done_counts(tmp_path, "begun")["request-0"] == 1, 20, lambda: "nothing began")
            load.stop()
            for each in found:
                if "begun" in each.log.read_text():
                    each.kill()
        (answer,) = load.answers
    assert answer.status == 502 and answer.error_code == "no_replica" and "was not repeated" in answer.text
    assert done_counts(tmp_path, "begun") == {"request-0": 1}


@needs_nginx
def test_a_change_of_replicas_breaks_off_nothing_and_the_old_ones_get_nothing_more(nginx, tmp_path):
    """A request whose connection was there before the change may still come late to an old replica, and is answered."""
    with replicas(tmp_path, 3) as (one, two, three):
        nginx.serve([one.port, two.port])
        with Load(nginx.url, clients=4) as load:
            for ports in ([three.port], [one.port, three.port], [two.port]):
                before = len(load.answers)
                wait_until(lambda before=before: len(load.answers) > before + 10, 30, lambda: "no answers come")
                nginx.serve(ports)
            change = load.take_number()
            wait_until(lambda: load.answers[-1].number > change + 10, 30, lambda: "no answers come")
        assert set(load.statuses) == {200}
        later = {each.id for each in load.answers if each.number > change}
        begun = [set(done_counts(tmp_path, "begun", each.log.name)) for each in (one, two, three)]
        assert later <= begun[1] and not later & (begun[0] | begun[2])
        assert set(done_counts(tmp_path).values()) == {1}


@needs_nginx
def test_it_leaves_nothing_running(tmp_path):
    with Nginx(tmp_path / "nginx") as nginx:
        port = nginx.proxy.port
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
    assert not (tmp_path / "nginx" / "nginx.pid").exists()
    with pytest.raises(NginxError, match="does not run"):
        nginx.serve([])
