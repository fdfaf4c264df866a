"""When an answer ends, and with which status: in virtual time, with an engine that gives a token per second."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from threeloops.product.service.admission import Admission, Client, Refused
from threeloops.product.service.completions import Answer
from threeloops.product.service.engine import RequestFailed, ServedModel
from threeloops.product.service.generation import job_of
from threeloops.product.service.http.observed import Observed
from threeloops.product.service.observability import ServiceMetrics
from threeloops.product.service.openai_protocol import CompletionRequest
from threeloops.product.service.settings import Settings
from threeloops.product.text import ByteTokenizer
from threeloops.simulation.event_loop import now, run

ENDING = Refused(503, "draining", "the service is shutting down", 1.0)


class Service:
    """One place, ten seconds per request, and an engine that takes `ends` seconds to let a request go."""

    def __init__(self, ends=0.0):
        self.settings = Settings(request_seconds=10, max_running=1)
        self.admission = Admission(1, 5, clock=now)
        self.metrics, self.cache, self.open_answers = ServiceMetrics("tiny", clock=now), None, set()
        self.switch, self.current, self.ends = self, "v1", ends
        self.tokenizer = ByteTokenizer()
        self.served = ServedModel(self.tokenizer, 256, 1000)

    @asynccontextmanager
    async def lease(self):
        yield self

    async def generate(self, request):
        try:
            for _ in range(request.sampling.max_tokens):
                await asyncio.sleep(1)
                yield 97
        finally:
            await asyncio.sleep(self.ends)

    async def busy(self, seconds):
        async with self.admission.admit(Client("somebody else"), 1):
            await asyncio.sleep(seconds)

    async def answer(self, tokens=100, **asked):
        """(status, headers, body, when)"""
        asked = CompletionRequest(model="tiny", prompt="a", max_tokens=tokens, **asked)
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            await asyncio.Event().wait()

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        job = await job_of(asked, Client("c"), self.settings, self.served)
        await Observed(Answer(self, job), self.metrics.refused)(scope, receive, send)
        start, *bodies = sent
        return start["status"], dict(start["headers"]), b"".join(each["body"] for each in bodies), now()


def aborted(service):
    """How many were aborted, the sum of their times in the queue, and that of their times in all."""
    value = service.metrics.registry.get_sample_value
    labels = {"model_name": "tiny", "engine": "0"}
    return [
        value("vllm:request_success_total", labels | {"finished_reason": "abort"}),
        value("vllm:request_queue_time_seconds_sum", labels),
        value("vllm:e2e_request_latency_seconds_sum", labels),
    ]


def code_of(body):
    return json.loads(body)["error"]["code"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_who_was_never_admitted_is_told_when_to_come_back_and_who_was_that_it_took_too_long(is_stream):
    async def main():
        service = Service()
        queue = asyncio.create_task(service.busy(12))
        await asyncio.sleep(0)
        status, headers, body, when = await service.answer(stream=is_stream)
        assert (status, code_of(body), when) == (503, "deadline_exceeded", 10)
        assert int(headers[b"retry-after"]) >= 1
        await queue
        queue = asyncio.create_task(service.busy(9.5))
        await asyncio.sleep(0)
        status, headers, body, when = await service.answer(stream=is_stream)
        assert (status, code_of(body), when) == (504, "deadline_exceeded", 12 + 10)
        assert b"retry-after" not in headers
        await queue
        assert (await service.answer(tokens=9))[::3] == (200, 22 + 9)

    run(main)


@pytest.mark.parametrize("moment", [3, 10.5])
def test_an_answer_may_be_cut_also_while_its_time_runs_out(moment):
    """From 10 s on its timeout has fired, and the engine takes its time to let the request go."""

    async def main():
        service = Service(ends=1)
        answering = asyncio.create_task(service.answer())
        await asyncio.sleep(moment)
        (answer,) = service.open_answers
        answer.cut(ENDING)
        answer.cut(ENDING)
        status, _, body, when = await answering
        assert (status, code_of(body), when) == (503, "draining", 1 + min(moment, 10))

    run(main)


def test_an_answer_that_still_queues_may_be_cut():
    async def main():
        service = Service()
        queue = asyncio.create_task(service.busy(2))
        await asyncio.sleep(0)
        answering = asyncio.create_task(service.answer())
        await asyncio.sleep(1)
        (answer,) = service.open_answers
        answer.cut(ENDING)
        status, _, body, when = await answering
        assert (status, code_of(body), when) == (503, "draining", 1)
        assert aborted(service) == [0, 0, 0], "it counts as refused, and its client did not leave"
        await queue

    run(main)


class Failing(Service):
    async def generate(self, request):
        yield 97
        raise RequestFailed("the logits are not finite")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "busy", "answer", "counted"),
    [
        (Service, 0, (200, None), "length"), (Failing, 0, (500, "generation_failed"), "error"),
        (Service, 0, (504, "deadline_exceeded"), "error"), (Service, 12, (503, "deadline_exceeded"), None),
    ],
    ids=["answered", "failed", "late", "never admitted"],
)  # fmt: skip
def test_a_request_is_counted_once_by_how_it_ended_or_as_refused(is_stream, kind, busy, answer, counted):
    async def main():
        service = kind()
        queue = asyncio.create_task(service.busy(busy))
        await asyncio.sleep(0)
        status, _, body, _ = await service.answer(tokens=100 if answer[0] == 504 else 5, stream=is_stream)
        code = answer[1]
        assert (status, code is None or code in body.decode()) == (200 if is_stream and counted else answer[0], True)
        samples = [each for family in service.metrics.registry.collect() for each in family.samples if each.value]
        ended = [each.labels["finished_reason"] for each in samples if each.name == "vllm:request_success_total"]
        refused = [each.labels["code"] for each in samples if each.name == "threeloops:requests_refused_total"]
        assert (ended, refused) == (([counted], []) if counted else ([], [code]))
        await queue

    run(main)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_who_leaves_the_queue_has_waited_until_then(is_stream):
    async def main():
        service = Service()
        queue = asyncio.create_task(service.busy(8))
        await asyncio.sleep(0)
        answering = asyncio.create_task(service.answer(stream=is_stream))
        await asyncio.sleep(3)
        answering.cancel()
        await asyncio.wait({answering})
        assert aborted(service) == [1, 3, 3]
        await queue

    run(main)


def test_a_request_that_waited_while_another_version_came_is_encoded_by_that_versions_tokenizer():
    class Doubled(ByteTokenizer):
        """Writes each byte twice."""

        fingerprint = "doubled"

        def encode(self, text):
            return tuple(byte for byte in text.encode() for _ in range(2))

    class Heard(Service):
        async def generate(self, request):
            self.heard = request.prompt
            async for token in super().generate(request):
                yield token

    async def main():
        service = Heard()
        queue = asyncio.create_task(service.busy(5))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(service.answer(tokens=2))
        await asyncio.sleep(1)
        service.tokenizer = Doubled()
        service.served = ServedModel(service.tokenizer, 256, 1000)
        status, _, body, _ = await waiting
        await queue
        assert status == 200 and service.heard == (97, 97)
        assert json.loads(body)["usage"]["prompt_tokens"] == 2

    run(main)


def test_a_model_without_an_end_token_gives_no_answer_with_a_form():
    class Endless(ByteTokenizer):
        end_tokens = frozenset()

    async def main():
        service = Service()
        service.served = ServedModel(Endless(), 256, 1000)
        with pytest.raises(Refused, match="tokenizer has no end token, so an answer with a structure") as refused:
            await service.answer(guided_choice=["yes"])
        assert (refused.value.status, refused.value.code, refused.value.param) == (
            400,
            "invalid_value",
            "guided_choice",
        )

    run(main)


@pytest.mark.parametrize(("longest", "code"), [(50, "context_length_exceeded"), (1000, "invalid_value")])
def test_what_the_engine_refuses_is_a_matter_of_length_only_if_it_is_too_long(longest, code):
    """The engine may have another model than when the request was checked."""

    class Refusing(Service):
        async def generate(self, request):
            self.served = ServedModel(self.tokenizer, 256, longest)
            raise ValueError("no")
            yield

    async def main():
        status, _, body, _ = await Refusing().answer(tokens=100)
        assert (status, code_of(body)) == (400, code)

    run(main)
