"""Requests that nobody should send: none may end in a 500, and none may leave anything behind."""

import asyncio
import json
from random import Random

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from threeloops.product.service.app import create_app
from threeloops.product.service.settings import Settings

PATIENCE = 60
VALID = {"model": "tiny", "prompt": "a", "max_tokens": 2, "temperature": 0.5, "stop": ["\n"], "stream": False}
STRANGE = [
    None, True, -1, 0, 1.5, 1e308, 10**30, "", "x" * 5000, "\u0000", "\ud800", [], [[]], [None] * 50, {}, {"a": {}},
    float("nan"), float("inf"), "💥", [0, 255, 256], ["a", 1],
]  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(create_app(Settings()).openapi())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.mark.parametrize("examples", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[f"{each.method} {each.path}" for each in OPERATIONS])
def test_the_service_does_what_its_openapi_description_says(service, operation, examples):
    """Whatever fits the description, and what just does not."""

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def check(data):
        case = data.draw(operation.as_strategy())
        if isinstance(case.body, dict) and case.body.get("model"):
            case.body["model"] = "tiny"  # else nearly every answer is that there is no such model
        case.call_and_validate(base_url=service.url, checks=CHECKS)

    check()


def malformed(random):
    """Bytes of a request that is wrong in one or several ways, and whether its body is shorter than it says."""
    body = dict(VALID)
    for _ in range(random.randrange(3)):
        name = random.choice([*VALID, "n", "seed", "top_p", "logprobs", "messages", "stream_options", "x"])
        body[name] = random.choice(STRANGE)
    text = bytearray(json.dumps(body).encode())
    if random.random() < 0.5:
        for _ in range(random.randrange(1, 4)):
            place = random.randrange(len(text))
            match random.randrange(3):
                case 0:
                    text[place] = random.randrange(256)
                case 1:
                    del text[place : place + random.randrange(1, 20)]
                    text = text or bytearray(b"{")
                case 2:
                    text[place:place] = random.randbytes(3)
    others = ["/v1/chat/completions", "/v1/models", "/admin/models/x", "/%00", "//"]
    path = random.choice(["/v1/completions"] * 3 + others)
    method = random.choice(["POST"] * 6 + ["GET", "PUT", "BREW"])
    length = random.choice([len(text)] * 6 + [len(text) + 5, max(0, len(text) - 5), -1, "x", 10**20])
    kind = random.choice(["application/json"] * 4 + ["text/plain", "", "multipart/form-data", "\xff"])
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n"
    if random.random() < 0.1:
        strange = ["authorization: Bearer \xff\r\n", "x-request-id: a b\r\n", "traceparent: 00-zz\r\n", "a\r\n"]
        head += random.choice(strange)
    is_short = isinstance(length, int) and length > len(text)
    return head.encode("latin-1") + b"connection: close\r\n\r\n" + bytes(text), is_short


@pytest.mark.parametrize("requests", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests_are_refused_and_leave_nothing_behind(service, requests):
    async def one(seed):
        sent, is_short = malformed(Random(seed))
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            try:
                writer.write(sent)
                if is_short:
                    writer.write_eof()  # a body that is shorter than it says ends here
                head = await reader.read(4096)
            except ConnectionError:
                head = b""
            writer.close()
            return seed, sent, head

    async def main():
        async with asyncio.timeout(5 * PATIENCE):
            return await asyncio.gather(*map(one, range(requests)))

    turn = asyncio.Semaphore(10)
    found = asyncio.run(main())
    statuses = [int(head.split()[1]) for _, _, head in found if head]
    assert not [each for each in found if each[2].startswith(b"HTTP/1.1 5")]
    assert 200 in statuses and 400 in statuses and 404 in statuses
    assert len(statuses) > 0.8 * requests
    service.settle()
