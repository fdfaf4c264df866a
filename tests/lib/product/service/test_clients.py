"""What nine outside clients send, as recorded from them against an echo of OpenAI's API: each request is answered, or
refused at the place of what this service does not have.

Recorded in November 2026: openai 3.57.0 (Python) and 6.49.0 (node), litellm 1.110.2, langchain-openai 1.7.4, instructor
1.17.0 and llm 0.36; `vllm bench serve`, guidellm 0.8.1 and lm-evaluation-harness from the requests that their
sources build.
"""

import json

import httpx
import pytest
from real_service import PATIENCE, event_data

HI = [{"role": "user", "content": "hi"}]
SECOND = [*HI, {"content": "b", "refusal": None, "role": "assistant"}, {"role": "user", "content": "more"}]
PERSON = {
    "properties": {"name": {"title": "Name", "type": "string"}, "age": {"title": "Age", "type": "integer"}},
    "required": ["name", "age"],
    "title": "Person",
    "type": "object",
}
CLOSED = PERSON | {"additionalProperties": False}
FUNCTION = {"type": "function", "function": {"name": "Person", "description": "", "parameters": PERSON}}
TOOLS = {"tool_choice": {"type": "function", "function": {"name": "Person"}}, "tools": [FUNCTION]}


def schema(described, **more):
    return {"type": "json_schema", "json_schema": {"schema": described, "name": "Person", **more}}


USAGE = {"include_usage": True}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

ANSWERED = {
    "openai-python: a completion": (COMPLETIONS, {"prompt": "import ", "max_tokens": 4, "temperature": 0}),
    "openai-python: prompts, answers, logprobs": (
        COMPLETIONS, {"prompt": ["a", "b"], "logprobs": 2, "max_tokens": 4, "n": 2},
    ),
    "openai-python: echo with logprobs": (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 2, "max_tokens": 4}),
    "openai-python: a stream": (COMPLETIONS, {"stream": True, "prompt": "a", "max_tokens": 4, "stream_options": USAGE}),
    "openai-python: a second turn": (
        CHAT, {"messages": SECOND, "logprobs": True, "max_completion_tokens": 4, "top_logprobs": 2},
    ),
    "openai-python: chat.completions.stream": (CHAT, {"stream": True, "messages": SECOND, "max_tokens": 4}),
    "openai-python: chat.completions.parse": (
        CHAT, {"stream": False, "messages": HI, "response_format": schema(CLOSED, strict=True)},
    ),
    "openai-python: extra_body": (
        CHAT, {"messages": HI, "guided_regex": "a+", "min_p": 0.1, "repetition_penalty": 1.1, "max_tokens": 4},
    ),
    "openai-node: a second turn": (CHAT, {"messages": SECOND, "max_tokens": 4}),
    "openai-node: a stream": (CHAT, {"messages": SECOND, "max_tokens": 4, "stream": True, "stream_options": USAGE}),
    "openai-node: after finalMessage()": (
        CHAT,
        {
            "messages": [*SECOND, {"role": "assistant", "content": "a", "refusal": None, "parsed": None}, *HI],
            "max_tokens": 4,
            "response_format": schema(CLOSED, strict=True),
        },
    ),
    "litellm: a second turn": (
        CHAT, {"messages": [*HI, {"content": "b", "role": "assistant"}, *HI], "max_tokens": 4, "stream": True,
               "stream_options": USAGE},
    ),
    "litellm: hosted_vllm": (CHAT, {"messages": HI, "temperature": 0.5, "top_p": 0.9, "max_tokens": 4}),
    "litellm: text_completion": (COMPLETIONS, {"prompt": "a", "max_tokens": 4}),
    "langchain-openai: ChatOpenAI": (CHAT, {"stream": False, "messages": HI, "max_completion_tokens": 4}),
    "langchain-openai: logprobs": (
        CHAT, {"stream": False, "messages": HI, "logprobs": True, "max_completion_tokens": 4, "top_logprobs": 2},
    ),
    "langchain-openai: with_structured_output": (
        CHAT,
        {"stream": False, "messages": HI, "max_completion_tokens": 40, "response_format": schema(CLOSED, strict=True)},
    ),
    "langchain-openai: json_mode": (
        CHAT, {"stream": False, "messages": HI, "max_completion_tokens": 4, "response_format": {"type": "json_object"}},
    ),
    "langchain-openai: OpenAI": (
        COMPLETIONS,
        {
            "prompt": ["a", "b"], "best_of": 2, "frequency_penalty": 0, "logprobs": None, "max_tokens": 4, "n": 2,
            "presence_penalty": 0, "seed": None, "temperature": 0.7, "top_p": 1,
        },
    ),
    "langchain-openai: OpenAI, a stream": (
        COMPLETIONS,
        {
            "stream": True, "prompt": "a", "frequency_penalty": 0, "logprobs": None, "max_tokens": 4, "n": 1,
            "presence_penalty": 0, "seed": None, "temperature": 0.7, "top_p": 1,
        },
    ),
    "instructor: JSON": (CHAT, {"messages": HI, "max_tokens": 30, "response_format": {"type": "json_object"}}),
    "instructor: JSON_SCHEMA": (CHAT, {"messages": HI, "max_tokens": 30, "response_format": schema(PERSON)}),
    "instructor: MD_JSON": (CHAT, {"messages": HI, "max_tokens": 30}),
    "lm-evaluation-harness: local-completions": (
        COMPLETIONS,
        {
            "prompt": [[97, 98], [99]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
        },
    ),
    "llm: a conversation": (
        CHAT, {"stream": True, "messages": [*HI, {"role": "assistant", "content": "a"}, *HI], "stream_options": USAGE},
    ),
    "llm: a completion": (COMPLETIONS, {"stream": True, "prompt": "hi", "stream_options": USAGE}),
    "vllm bench serve: openai": (
        COMPLETIONS,
        {
            "prompt": "a", "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None, "stream": True,
            "stream_options": USAGE, "ignore_eos": True,
        },
    ),
    "vllm bench serve: openai-chat": (
        CHAT,
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_completion_tokens": 4,
            "stream": True, "stream_options": USAGE, "ignore_eos": True,
        },
    ),
    "guidellm: text_completions": (
        COMPLETIONS,
        {
            "prompt": "a", "max_tokens": 4, "stop": None, "ignore_eos": True, "stream": True,
            "stream_options": USAGE | {"continuous_usage_stats": True},
        },
    ),
    "guidellm: chat_completions": (
        CHAT,
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_completion_tokens": 4,
            "stop": None, "ignore_eos": True, "stream": True,
            "stream_options": USAGE | {"continuous_usage_stats": True},
        },
    ),
}  # fmt: skip

REFUSED = {
    "langchain-openai: function_calling": (
        CHAT,
        {"messages": HI, "parallel_tool_calls": False, **TOOLS},
        "tool_choice",
    ),
    "instructor: TOOLS": (CHAT, {"messages": HI, "max_tokens": 30, **TOOLS}, "tool_choice"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_recorded_request_is_answered(service, name):
    path, asked = ANSWERED[name]
    answer = httpx.post(service.url + path, json={"model": "tiny"} | asked, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    if asked.get("stream"):
        *events, done = event_data(answer.text)
        assert done == "[DONE]" and (events[-1].get("usage") is not None) == ("stream_options" in asked)
        choices = [choice for event in events for choice in event["choices"]]
    else:
        choices = answer.json()["choices"]
        assert answer.json()["usage"]["completion_tokens"] > 0
    assert len([choice for choice in choices if choice["finish_reason"]]) == asked.get("n", 1) * len(
        asked["prompt"] if isinstance(asked.get("prompt"), list) else [None]
    )
    form = asked.get("response_format", {}).get("type")
    for choice in choices if form and not asked.get("stream") else ():
        content = choice["message"]["content"]
        assert content.startswith("{")
        if choice["finish_reason"] == "stop":
            assert form == "json_object" or json.loads(content).keys() == {"name", "age"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recorded_request_for_what_there_is_not_is_refused_at_its_place(service, name):
    path, asked, param = REFUSED[name]
    answer = httpx.post(service.url + path, json={"model": "tiny"} | asked, timeout=PATIENCE)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and error["message"].startswith(f"{param}: ")
