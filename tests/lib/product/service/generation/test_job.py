"""A request that asks for too much is told which of its fields to change."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from threeloops.product.service.admission import Client, Refused
from threeloops.product.service.engine import ServedModel
from threeloops.product.service.generation import job_of
from threeloops.product.service.openai_protocol import ChatRequest, CompletionRequest
from threeloops.product.text import ByteTokenizer

SETTINGS = SimpleNamespace(name="tiny", max_running=4, default_max_tokens=64, largest_max_tokens=100)
MODEL = ServedModel(ByteTokenizer(), 256, longest=50)


def completion(prompt, **fields):
    return CompletionRequest.model_validate({"model": "tiny", "prompt": prompt, **fields})


class Threads(ByteTokenizer):
    """Notes in which thread a conversation is rendered."""

    def __init__(self):
        self.seen = []

    def encode_chat(self, messages):
        self.seen.append(threading.current_thread())
        return super().encode_chat(messages)


def test_a_conversation_is_rendered_outside_of_the_event_loop_however_short_it_is():
    tokenizer = Threads()
    asyncio.run(job_of(chat(), Client("alice"), SETTINGS, ServedModel(tokenizer, 256, longest=50)))
    (thread,) = tokenizer.seen
    assert thread is not threading.main_thread()


def chat(**fields):
    messages = [{"role": "user", "content": "a" * 12}]  # 30 tokens with "user: ", a line break and "assistant: "
    return ChatRequest.model_validate({"model": "tiny", "messages": messages, **fields})


@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        (
            completion("a" * 50),
            "prompt",
            "the prompt (50 tokens) leaves no room for an answer in this model's 50 tokens: shorten it",
        ),
        (
            completion("a" * 50, max_tokens=1),
            "prompt",
            "the prompt (50 tokens) leaves no room for an answer in this model's 50 tokens: shorten it",
        ),
        (
            completion("a" * 40, max_tokens=11),
            "prompt",
            "the prompt (40 tokens) and max_tokens = 11 are together more than this model's 50 tokens: shorten the "
            "prompt, or lower max_tokens",
        ),
        (
            chat(max_completion_tokens=25),
            "messages",
            "the prompt (30 tokens) and max_completion_tokens = 25 are together more than this model's 50 tokens: "
            "shorten the prompt, or lower max_completion_tokens",
        ),
        (
            chat(max_completion_tokens=101),
            "max_completion_tokens",
            "max_completion_tokens: 101 is more than this service's limit of 100 tokens: lower it",
        ),
        (
            completion("a" * 45, min_tokens=6),
            "min_tokens",
            "min_tokens: 6 is more than the answer's limit of 5 tokens: lower it",
        ),
        (
            completion(["a", "b"], n=3),
            "n",
            "n: 2 prompts with n = 3 answers each make 6 answers: expected at most 4 in one request; send several "
            "requests",
        ),
    ],
    ids=["no room", "no room at any limit", "max_tokens", "max_completion_tokens", "limit", "min_tokens", "n"],
)
def test_a_refusal_names_the_field_that_the_client_sent(asked, param, told):
    with pytest.raises(Refused) as refused:
        asyncio.run(job_of(asked, Client("alice"), SETTINGS, MODEL))
    assert (refused.value.param, str(refused.value)) == (param, told)
