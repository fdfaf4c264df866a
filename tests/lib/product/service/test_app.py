"""What clients see: OpenAI's own client, curl, and those who go away, do not read, or send nonsense."""

import asyncio
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from real_service import PATIENCE, LocalService, answer_of, event_data, eventually, long_model
from threeloops.product.service.admission import Admission, Keys

PROMPT = "def main("
LONG = {"model": "tiny", "prompt": PROMPT, "max_tokens": 240, "temperature": 0, "ignore_eos": True}
"""A request that takes a few hundred steps."""


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def http(service):
    with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
        yield client


def texts(chunks):
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_a_completion_is_what_the_model_goes_on_with(client):
    done = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30, temperature=0)
    assert done.choices[0].text == answer_of(PROMPT, 30)
    assert (done.choices[0].finish_reason, done.model, done.object) == ("length", "tiny", "text_completion")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (9, 30, 39)


def test_a_stream_has_the_same_text_piece_by_piece(client):
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=30, temperature=0, stream=True, stream_options=options
        )
    )
    assert texts(chunks) == answer_of(PROMPT, 30)
    assert len(chunks) > 20, "it did not come in pieces"
    assert len({chunk.id for chunk in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * (len(chunks) - 2) + ["length"]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [30]
    assert chunks[-1].choices == []


def test_a_stream_says_in_every_event_how_many_tokens_there_are_so_far(client):
    """As load generators ask for it: vLLM's `continuous_usage_stats`."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "stream": True}
    *chunks, last = client.completions.create(**asked, stream_options=options)
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.choices[0].text] == [1, 2, 3, 4, 5]
    assert last.usage == chunks[-1].usage and last.choices == []


def test_a_conversation_goes_on_with_the_message_that_the_service_gave(client):
    """OpenAI's client sends back its own object, with null for what there was not."""
    turns = [{"role": "user", "content": "hi"}]
    for _ in range(2):
        answer = client.chat.completions.create(model="tiny", messages=turns, max_tokens=4, temperature=0)
        turns += [answer.choices[0].message, {"role": "user", "content": "more"}]
    assert answer.usage.prompt_tokens > len("user: hi\nassistant: ")


def test_many_clients_at_once_get_what_each_would_get_alone(service):
    async def ask(client, begin):
        found = await client.completions.create(model="tiny", prompt=begin, max_tokens=15, temperature=0, stream=True)
        return "".join([chunk.choices[0].text async for chunk in found])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=PATIENCE) as client:
            return await asyncio.gather(*(ask(client, begin) for begin in begins))

    begins = [f"{word} {n}" for n in range(5) for word in ("import", "class")]
    assert asyncio.run(main()) == [answer_of(begin, 15) for begin in begins]


def test_a_conversation_goes_on_as_its_template_does(client):
    messages = [{"role": "user", "content": "import os"}]
    done = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=20, temperature=0)
    answer = answer_of("user: import os\nassistant: ", 20)
    assert (done.choices[0].message.role, done.choices[0].message.content) == ("assistant", answer)
    chunks = list(
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=20, temperature=0, stream=True)
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    assert (chunks[0].choices[0].delta.role, chunks[-1].choices[0].finish_reason) == ("assistant", "length")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_stop_string_ends_the_text_before_it_and_the_generation_with_it(client, is_stream):
    whole = answer_of(PROMPT, 60)
    stop = whole[20:24]
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 200, "temperature": 0, "stop": ["\0never", stop]}
    if is_stream:
        chunks = list(client.completions.create(**asked, stream=True))
        text, reason = texts(chunks), chunks[-1].choices[0].finish_reason
    else:
        done = client.completions.create(**asked)
        text, reason = done.choices[0].text, done.choices[0].finish_reason
        assert done.usage.completion_tokens < 60, "it went on behind the stop string"
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_a_seed_repeats_an_answer_and_no_seed_does_not(client):
    def ask(**seed):
        return client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, **seed).choices[0].text

    assert ask(seed=5) == ask(seed=5) != ask(seed=6)
    assert len({ask() for _ in range(3)}) == 3


def test_an_answer_that_names_no_length_has_the_services_and_fits_the_model(service, client):
    def tokens(prompt, **more):
        extra = {"ignore_eos": True}
        done = client.completions.create(model="tiny", prompt=prompt, temperature=0, extra_body=extra, **more)
        return done.usage.completion_tokens

    assert tokens("a") == service.settings.default_max_tokens
    assert tokens("a" * 250) == 256 + 1 - 250
    assert tokens("a" * 250, max_tokens=7) == 7


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt/4")


def test_curl_sees_a_stream_of_events(service):
    body = '{"model": "tiny", "prompt": "import ", "max_tokens": 5, "temperature": 0, "stream": true}'
    done = subprocess.run(
        ["curl", "-sN", "-i", f"{service.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    head, _, events = done.stdout.replace("\r\n", "\n").partition("\n\n")
    assert "200" in head.splitlines()[0] and "content-type: text/event-stream" in head
    assert event_data(events)[-1] == "[DONE]"
    assert "".join(each["choices"][0]["text"] for each in event_data(events)[:-1]) == answer_of("import ", 5)


ENDLESS = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}
REFUSALS = [
    ({"model": "gpt-4"}, 404, "model", "model_not_found"),
    ({"max_tokens": 1000}, 400, "prompt", "context_length_exceeded"),
    ({"max_tokens": 100_000}, 400, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, 400, "max_tokens", "invalid_value"),
    ({"prompt": ""}, 400, "prompt", "invalid_value"),
    ({"prompt": ["a", ""]}, 400, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 65}, 400, "prompt", "invalid_value"),
    ({"prompt": "a" * 300}, 400, "prompt", "context_length_exceeded"),
    ({"n": 65}, 400, "n", "invalid_value"),
    ({"n": 129}, 400, "n", "invalid_value"),
    ({"logprobs": 21}, 400, "logprobs", "invalid_value"),
    ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    ({"stop_token_ids": [256]}, 400, "stop_token_ids", "invalid_value"),
    ({"top_logprobs": 1}, 400, "top_logprobs", "unsupported_parameter"),
    ({"min_tokens": 9, "max_tokens": 8}, 400, "min_tokens", "invalid_value"),
    ({"repetition_penalty": 1e-39}, 400, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": 0.009}, 400, "repetition_penalty", "invalid_value"),
    ({"logit_bias": {"256": 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, 400, "logit_bias", "invalid_value"),
    ({"guided_regex": "(a"}, 400, "guided_regex", "invalid_value"),
    ({"guided_json": {"type": "strng"}}, 400, "guided_json", "invalid_value"),
    ({"guided_json": "{"}, 400, "guided_json", "invalid_value"),
    ({"guided_json": ENDLESS}, 400, "guided_json", "invalid_value"),
    ({"guided_json": {"type": "integer", "minimum": 2**60}}, 400, "guided_json", "invalid_value"),
    ({"guided_choice": ["x" * 70_000]}, 400, "guided_choice", "invalid_value"),
    ({"guided_choice": ["a\0b"]}, 400, "guided_choice", "invalid_value"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_choice", "invalid_value"),
    ({"guided_regex": "a", "min_tokens": 1}, 400, "min_tokens", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema", "invalid_value"),
    ({"response_format": {"type": "xml"}}, 400, "response_format", "invalid_value"),
    ({"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
    ({"stop": ["a"] * 5}, 400, "stop", "invalid_value"),
    ({"stop": [""]}, 400, "stop", "invalid_value"),
    ({"unheard_of": 1}, 400, "unheard_of", "unknown_parameter"),
    ({"": 1}, 400, "", "unknown_parameter"),
    ({"body": 1}, 400, "body", "unknown_parameter"),
    ({"unheard_of": None}, 400, "unheard_of", "unknown_parameter"),
    ({"x" * 5000: 1}, 400, "x" * 64 + "…", "unknown_parameter"),
    ({"stream_options": {"x": 1}}, 400, "stream_options.x", "unknown_parameter"),
    ({"temperature": 3}, 400, "temperature", "invalid_value"),
    ({"stream_options": {"include_usage": "yes"}}, 400, "stream_options", "invalid_value"),
]


def refusal(answer):
    """(status, param, code), once it was seen that the error has OpenAI's four fields and a sentence."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert error["type"].endswith("_error") and len(error["message"]) > 10
    assert answer.headers["x-request-id"]
    return answer.status_code, error["param"], error["code"]


@pytest.mark.parametrize(("changes", "status", "param", "code"), REFUSALS, ids=[str(each[0])[:30] for each in REFUSALS])
def test_a_request_that_cannot_be_answered_is_refused_by_name(http, changes, status, param, code):
    answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "a", **changes})
    assert refusal(answer) == (status, param, code)
    assert len(answer.content) < 500


def test_what_a_client_sent_is_not_echoed_at_any_length(http):
    for answer in (http.get(f"/v1/models/{'x' * 10_000}"), http.post("/v1/completions", json={"x" * 10_000: 1})):
        assert refusal(answer)[0] in (400, 404) and len(answer.content) < 2000


def test_openais_client_knows_our_errors(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", n=65)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"), (b"", "invalid_value"), (b"null", "invalid_value"), (b"[]", "invalid_value"),
        (b'"text"', "invalid_value"), (b"[" * 100_000, "nested_too_deeply"), (b"\xff\xfe\xfd", "invalid_utf8"),
        (b'{"model": "tiny", "prompt": "\xff"}', "invalid_utf8"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "invalid_value"),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', "invalid_value"),
        (b'{"model": "tiny", "prompt": "a", "temperature": Infinity}', "invalid_value"),
        (b'{"model": "tiny", "prompt": "a", "max_tokens": 1e999}', "invalid_value"),
        (b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"model": "tiny", "metadata": ' + b'{"a":' * 9000 + b"1" + b"}" * 9001, "nested_too_deeply"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_a_400(http, body, code):
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert refusal(answer)[::2] == (400, code)


@pytest.mark.parametrize(
    ("headers", "code", "told"),
    [
        ({}, "unsupported_media_type", "the header Content-Type is missing: expected application/json"),
        (
            {"content-type": "application/x-www-form-urlencoded"},
            "unsupported_media_type",
            "Content-Type is 'application/x-www-form-urlencoded': expected application/json (with curl: -H "
            "'Content-Type: application/json')",
        ),
        ({"content-type": "application/jsonp"}, "unsupported_media_type", "Content-Type is 'application/jsonp': "),
        (
            {"content-type": "application/json", "content-encoding": "GZIP"},
            "unsupported_encoding",
            "the body is compressed (Content-Encoding: 'gzip'): send it as it is, without Content-Encoding",
        ),
    ],
    ids=["none", "a form", "nearly", "gzip"],
)
def test_a_body_that_its_headers_say_is_not_plain_json_is_a_415(http, headers, code, told):
    answer = http.post("/v1/completions", content=b'{"model": "tiny", "prompt": "a"}', headers=headers)
    assert refusal(answer)[::2] == (415, code) and answer.json()["error"]["message"].startswith(told)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_has_many_names(http, kind):
    body = b'{"model": "tiny", "prompt": "a", "max_tokens": 1}'
    assert http.post("/v1/completions", content=body, headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"model": "\xff"}', "the body is not UTF-8: byte 11 is 0xff"),
        (b"[" * 5000, "the body nests arrays or objects too deeply: expected a few dozen levels"),
        (b"{} {}", "the body is not JSON: Extra data"),
        (b"9" * 5000, "the body cannot be read as JSON: Exceeds the limit (4300 digits) for integer string conversion"),
    ],
    ids=["encoding", "depth", "syntax", "digits"],
)
def test_what_is_wrong_with_a_body_is_said(http, body, told):
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.json()["error"]["message"].startswith(told)


@pytest.mark.parametrize("probe", ["/health", "/health/startup", "/ready"])
def test_a_probe_may_ask_for_the_head_only(http, probe):
    answer = http.head(probe)
    assert (answer.status_code, answer.content) == (200, b"")


def test_paths_methods_and_types_that_there_are_not(http):
    assert refusal(http.get("/v1/nothing"))[::2] == (404, "not_found")
    assert refusal(http.get("/v1/completions"))[::2] == (405, "method_not_allowed")
    assert "POST" in http.get("/v1/completions").headers["allow"]
    assert refusal(http.post("/v1/completions", content=b"model=tiny"))[0] == 415
    too_large = http.post("/v1/completions", json="x" * (1 << 20))
    assert refusal(too_large)[::2] == (413, "request_too_large")
    assert too_large.headers["connection"] == "close"


def test_a_request_id_is_taken_over_where_it_is_plain(http):
    def id_of(given):
        return http.get("/health", headers={"x-request-id": given}).headers["x-request-id"]

    assert id_of("abc-1.2_3") == "abc-1.2_3"
    assert id_of("a" * 65) != "a" * 65 and id_of("a b") != "a b"


def test_keys_are_asked_for_and_limits_are_a_clients_own(service, http, tmp_path):
    (rich, its_entry), (poor, entry) = Keys.new("rich"), Keys.new("poor")
    path = tmp_path / "keys.toml"
    path.write_text(its_entry + entry + "limits = { requests_per_second = 0.01, request_burst = 1 }\n")

    def ask(key):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1}, headers=headers)

    with service.changed(keys=Keys.load(path)):
        for key in ("", "tl-wrong"):
            assert refusal(ask(key)) == (401, None, "invalid_api_key")
        for path in ("/v1/completions", "/v1/nothing", "/admin/models/x"):
            assert refusal(http.post(path, content=b"{" * 2_000_000))[::2] == (401, "invalid_api_key")
        other = http.post("/admin/models/x", content=b"{", headers={"authorization": f"Bearer {rich}"})
        assert refusal(other) == (403, None, "not_admin")
        assert ask(poor).status_code == 200
        late = ask(poor)
        assert refusal(late) == (429, None, "rate_limit_exceeded")
        assert 1 <= int(late.headers["retry-after"]) <= 100
        assert ask(rich).status_code == 200
        assert refusal(http.get("/v1/models"))[0] == 401
        assert http.get("/ready").status_code == 200, "a probe has no key"
        admin = http.get("/admin/models", headers={"authorization": f"Bearer {rich}"})
        assert refusal(admin) == (403, None, "not_admin")


def test_more_than_the_service_takes_on_is_refused_at_once_with_the_time_to_come_back(service, http):
    with service.changed(admission=Admission(1, 1)), ThreadPoolExecutor(1) as pool:
        with service.held_place():
            queued = pool.submit(http.post, "/v1/completions", json=LONG | {"max_tokens": 1})
            eventually(lambda: service.service.admission.queued == 1, "the second request is queued")
            full = http.post("/v1/completions", json=LONG)
            assert refusal(full) == (503, None, "overloaded")
            assert int(full.headers["retry-after"]) >= 1
            metrics = http.get("/metrics").text
            assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0' in metrics
            assert 'threeloops:requests_refused_total{code="overloaded",engine="0",model_name="tiny"}' in metrics
        assert queued.result(PATIENCE).status_code == 200


def test_an_answer_that_takes_too_long_is_a_504_or_the_last_event_of_its_stream(service, http):
    with service.changed(request_seconds=0.02):
        assert refusal(http.post("/v1/completions", json=LONG))[::2] == (504, "deadline_exceeded")
        answer = http.post("/v1/completions", json=LONG | {"stream": True})
    if answer.status_code == 200:  # there was a first token in time
        *_, last = event_data(answer.text)
        assert last["error"]["code"] == "deadline_exceeded"
    else:
        assert refusal(answer)[::2] == (504, "deadline_exceeded")


def raw_request(service, body):
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


async def leave_in_mid_stream(service, times, at_once=20):
    body = '{"model": "tiny", "prompt": "def main(", "max_tokens": 240, "ignore_eos": true, "stream": %s}'

    async def one(number):
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(raw_request(service, body % ("false" if number % 5 == 0 else "true")))
            if number % 5 == 1:
                await writer.drain()  # goes away before there is anything
            elif number % 5:
                head = await reader.readuntil(b"data: ")
                assert head.startswith(b"HTTP/1.1 200"), head
            writer.transport.abort()

    turn = asyncio.Semaphore(at_once)
    async with asyncio.timeout(10 * PATIENCE):
        await asyncio.gather(*map(one, range(times)))


@pytest.mark.parametrize("times", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_clients_that_go_away_leave_nothing_behind(service, http, times):
    before = service.stats().steps
    asyncio.run(leave_in_mid_stream(service, times))
    service.settle()
    assert service.stats().steps - before < times * 240 / 2, "what nobody reads was computed all the same"
    assert http.post("/v1/completions", json=LONG | {"max_tokens": 1}).status_code == 200


def test_a_client_that_goes_away_while_it_queues_leaves_no_hole_and_is_counted(service, http):
    def counts():
        samples = (line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
        found = {name: float(value) for name, value in samples}
        return [
            next(value for name, value in found.items() if name.startswith(family) and part in name)
            for family, part in (
                ("vllm:request_success_total", '"abort"'),
                ("vllm:request_queue_time_seconds_count", ""),
                ("vllm:e2e_request_latency_seconds_count", ""),
                ("vllm:time_to_first_token_seconds_count", ""),
            )
        ]

    with service.changed(admission=Admission(1, 5)), service.held_place():
        before = counts()
        waiting = socket.create_connection(("127.0.0.1", service.port), PATIENCE)
        waiting.sendall(raw_request(service, '{"model": "tiny", "prompt": "a"}'))
        eventually(lambda: service.service.admission.queued == 1, "it is queued")
        waiting.close()
        eventually(lambda: service.service.admission.queued == 0, "its place is free")
        expected = [value + more for value, more in zip(before, (1, 1, 1, 0), strict=True)]
        eventually(lambda: counts() == expected, "it is counted once, without a first token")


def test_a_killed_engine_gives_errors_and_comes_back(service, http):
    def ask(is_stream):
        answer = http.post("/v1/completions", json=LONG | {"stream": is_stream})
        return answer.status_code, answer.text

    before = service.engine_pid()
    with ThreadPoolExecutor(8) as pool, http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as first:
        pieces = first.iter_text()
        text = next(pieces)
        os.kill(before, signal.SIGSTOP)  # so that none of them is answered before it dies
        others = [pool.submit(ask, number % 2 == 0) for number in range(8)]
        eventually(lambda: service.service.admission.running >= 8, "all have reached the engine")
        os.kill(before, signal.SIGKILL)
        for other in others:
            status, said = other.result(PATIENCE)
            assert status == 503 and "engine_unavailable" in said
        last = event_data(text + "".join(pieces))[-1]
        assert last == "[DONE]" or last["error"]["code"] == "engine_unavailable"
    answer = http.get("/ready")
    assert answer.status_code == 503 and answer.json()["status"] == "restarting"
    assert http.get("/health").status_code == 200 == http.get("/health/startup").status_code
    refused = http.post("/v1/completions", json=LONG)
    assert refusal(refused)[::2] == (503, "engine_unavailable") and refused.headers["retry-after"]
    assert http.get("/metrics").status_code == 200
    told = []

    def is_served():
        told.append(http.post("/v1/completions", json=LONG).status_code)
        return told[-1] == 200

    eventually(is_served, "another engine serves")
    assert set(told) <= {200, 503}, "also while it loads, it is not the service's fault"
    assert service.is_ready() and service.engine_pid() != before
    assert http.post("/v1/completions", json=LONG).status_code == 200


def test_a_reader_that_does_not_read_is_paused_and_starves_nobody(tmp_path):
    asked = '{"model": "long", "prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true}'
    with LocalService(model=str(long_model(tmp_path / "long")), blocks=70) as service:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(PATIENCE)
        slow.connect(("127.0.0.1", service.port))
        with slow:
            slow.sendall(raw_request(service, asked))

            def is_paused():  # it goes on for a moment while buffers on the way still take something
                stats = service.stats()
                return (stats.paused, stats.blocks_free) == (1, 70)

            eventually(is_paused, "the slow reader is paused and has given its blocks back")
            other = httpx.post(
                f"{service.url}/v1/completions",
                json={"model": "long", "prompt": "b", "max_tokens": 1100, "ignore_eos": True},
                timeout=PATIENCE,
            )
            assert other.json()["usage"]["completion_tokens"] == 1100
            read = b""
            while b"[DONE]" not in read[-100:]:
                read += slow.recv(1 << 16)
        assert read.count(b'"finish_reason":"length"') == 1
        service.settle()


def test_a_page_and_metrics_for_the_operator(http):
    http.post("/v1/completions", json=LONG | {"max_tokens": 3})
    page = http.get("/dashboard")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    text = http.get("/metrics").text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0' in text
