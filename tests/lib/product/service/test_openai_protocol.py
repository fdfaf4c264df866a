"""The wire format: what is understood, what is refused by name, and what the model is given to continue."""

import math

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from threeloops.product.request import Sampling
from threeloops.product.service.http.errors import refusal_of
from threeloops.product.service.openai_protocol import ChatRequest, CompletionRequest
from threeloops.product.text import ByteTokenizer

BYTES, END = ByteTokenizer(), frozenset({0})


def completion(**changes):
    return CompletionRequest.model_validate({"model": "tiny", "prompt": "a", **changes})


def chat(*turns, **changes):
    messages = [{"role": role, "content": content} for role, content in turns]
    return ChatRequest.model_validate({"model": "tiny", "messages": messages, **changes})


@pytest.mark.parametrize("wrong", [2**31, -1, True, None, [], {}], ids=str)
def test_a_list_of_mistakes_is_one_mistake(wrong):
    """An error for each of a million would keep everybody else waiting."""
    many = [wrong] * 1000
    for ask in (
        lambda: completion(prompt=many),
        lambda: completion(prompt=[many]),
        lambda: completion(stop=many),
        lambda: ChatRequest.model_validate({"model": "tiny", "messages": many}),
        lambda: chat(("user", many)),
        lambda: completion(**{f"field_{number}": wrong for number in range(1000)}),
    ):
        with pytest.raises(ValidationError) as refused:
            ask()
        assert refused.value.error_count() <= 8


@pytest.mark.parametrize("prompt", ["é", ["é"], [0xC3, 0xA9], [[0xC3, 0xA9]]])
def test_a_prompt_is_text_or_bytes_alone_or_in_a_list_of_one(prompt):
    assert completion(prompt=prompt).prompts(BYTES)[0] == (0xC3, 0xA9)


@pytest.mark.parametrize("prompt", [[], ["a", []], [[1], 2], [2**31], [-1], [[]], None, 3, {"a": 1}])
def test_other_prompts_are_refused(prompt):
    with pytest.raises(ValidationError):
        completion(prompt=prompt)


def test_null_is_as_good_as_nothing_where_there_is_a_default():
    """OpenAI's clients send it for parameters that were not set."""
    defaults = [name for name, field in CompletionRequest.model_fields.items() if not field.is_required()]
    assert completion(**dict.fromkeys([*defaults, "logprobs", "user", "best_of"])) == completion()
    assert completion(stream=True, stream_options={"include_usage": None}).stream_options.include_usage is False
    turn = {"role": "user", "content": "a", "name": None}
    assert ChatRequest.model_validate({"model": "tiny", "messages": [turn], "top_p": None}).top_p == 1
    for name in ("model", "prompt", "unheard_of"):
        with pytest.raises(ValidationError):
            completion(**{name: None})
    schema = CompletionRequest.model_json_schema()["properties"]
    assert {"type": "null"} in schema["temperature"]["anyOf"] and "anyOf" not in schema["model"]


@pytest.mark.parametrize("prompt", ["", [""]])
def test_an_empty_prompt_is_refused_when_its_tokens_are_asked_for(prompt):
    with pytest.raises(ValueError, match="the prompt is empty"):
        completion(prompt=prompt).prompts(BYTES)[0]


def test_half_of_a_surrogate_pair_is_no_text():
    with pytest.raises(ValueError, match="character 1 is half of a surrogate pair"):
        completion(prompt="a\ud800").prompts(BYTES)[0]
    with pytest.raises(ValidationError):
        completion(cache_salt="\udfff")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": "5"}, {"max_tokens": True},
        {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": -0.1}, {"temperature": 2.1},
        {"temperature": "1"}, {"top_p": 0}, {"top_p": 1.01}, {"top_p": math.nan}, {"top_k": -2}, {"top_k": 2**31},
        {"n": 129}, {"n": 0}, {"stop": ""}, {"stop": ["a"] * 5}, {"stop": [""]}, {"stop": "x" * 1025}, {"stop": [1]},
        {"seed": 2**63}, {"stream": "yes"}, {"stream_options": {"include": True}}, {"unheard_of": 1}, {"model": 3},
    ],
)  # fmt: skip
def test_values_out_of_range_or_of_another_type_are_refused(changes):
    with pytest.raises(ValidationError):
        completion(**changes)


@pytest.mark.parametrize(
    "name, value",
    [
        ("suffix", "x"), ("tools", [{"type": "function"}]), ("functions", [{}]), ("tool_choice", "required"),
        ("modalities", ["audio"]), ("length_penalty", 0.0), ("skip_special_tokens", False), ("detokenize", False),
        ("bad_words", ["a"]), ("prompt_logprobs", 0), ("priority", -1), ("truncate_prompt_tokens", 0),
    ],
)  # fmt: skip
def test_what_the_service_does_not_have_is_refused_by_name(name, value):
    for make in (completion, lambda **changes: chat(("user", "a"), **changes)):
        with pytest.raises(ValidationError) as refused:
            make(**{name: value})
        (error,) = refused.value.errors()
        assert error["type"] == "unsupported" and error["ctx"]["param"] == name


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": -1}, {"top_k": 0}, {"length_penalty": 1.0}, {"use_beam_search": False}, {"priority": 0},
        {"skip_special_tokens": True}, {"spaces_between_special_tokens": True}, {"add_special_tokens": True},
        {"stop_token_ids": []}, {"bad_words": []}, {"chat_template_kwargs": {}}, {"allowed_token_ids": None},
        {"detokenize": True}, {"add_generation_prompt": True}, {"include_stop_str_in_output": False},
        {"return_tokens_as_token_ids": False}, {"request_id": "7"}, {"guided_decoding_backend": "xgrammar"},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)  # fmt: skip
def test_vllms_fields_pass_with_values_that_ask_for_nothing(changes):
    assert completion(seed=3, **changes).sampling(5, END) == completion(seed=3).sampling(5, END)


def message_refused(message):
    """What a client is told of a conversation with this message at its end: (param, message)."""
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({"model": "tiny", "messages": [{"role": "user", "content": "a"}, message]})
    return refusal(refused.value)


def refusal(error):
    told = refusal_of(RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]))
    return told.param, told.message


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"prompt": ["a", 5]}, "prompt", "prompt[1]: input should be a valid string"),
        ({"prompt": [5, "a"]}, "prompt", "prompt[1]: input should be a valid integer"),
        ({"prompt": [[1, 2], [3, "a"]]}, "prompt", "prompt[1][1]: input should be a valid integer"),
        ({"logit_bias": {"a b": 101}}, "logit_bias", "logit_bias: 'a b': expected the number of a token, such as '65'"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "logit_bias: '-1': expected the number of a token, such as '65'"),
        ({"logit_bias": {"7": 101}}, "logit_bias", "logit_bias[7]: input should be less than or equal to 100"),
        (
            {"logit_bias": {"01": 1, "1": 2}},
            "logit_bias",
            "logit_bias: '01' and '1' are the same token: leave one of the two out",
        ),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options: it requires stream = true: add that, or leave stream_options out",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_field_that_is_refused_is_refused_at_its_own_place(fields, param, told):
    with pytest.raises(ValidationError) as refused:
        completion(**fields)
    assert refusal(refused.value) == (param, told)


NULLS = dict.fromkeys(["refusal", "annotations", "audio", "function_call", "tool_calls", "name", "reasoning_content"])


@pytest.mark.parametrize(
    "more", [{"refusal": None}, NULLS, {"annotations": [], "tool_calls": []}, {"parsed": {"a": 1}}]
)
def test_an_answer_may_be_sent_back_as_clients_keep_it(more):
    answer = {"role": "assistant", "content": "b", **more}
    asked = ChatRequest.model_validate({"model": "tiny", "messages": [answer, {"role": "user", "content": "c"}]})
    assert bytes(asked.prompts(BYTES)[0]).decode() == "assistant: b\nuser: c\nassistant: "


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
            "messages[1].tool_calls",
            "messages[1].tool_calls: this service calls no tools: leave it out",
        ),
        (
            {"role": "tool", "content": "4", "tool_call_id": "1"},
            "messages[1].role",
            "messages[1].role: this service calls no tools, and this message has the role 'tool': leave it out",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            "messages[1].content[1].type",
            "messages[1].content[1].type: this service reads text only, and this is 'image_url': leave it out",
        ),
        ({"role": "assistant", "content": None}, "messages", "messages[1].content: input should be a valid string"),
        ({"role": "user", "content": "a", "x": 1}, "messages[1].x", "there is no parameter 'messages[1].x'"),
        ({"role": "user"}, "messages", "messages[1].content: is missing"),
        (
            {"role": "user", "content": [{"type": "text", "text": 1}]},
            "messages",
            "messages[1].content[0].text: input should be a valid string",
        ),
        (
            {"role": "user", "content": "a\ud800"},
            "messages",
            "messages[1].content: character 1 is half of a surrogate pair, which is not text",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "\udfff"}]},
            "messages",
            "messages[1].content[1].text: character 0 is half of a surrogate pair, which is not text",
        ),
    ],
    ids=[
        "tool calls",
        "a tool's message",
        "an image",
        "no content",
        "a field",
        "nothing",
        "a number",
        "no text",
        "a part that is no text",
    ],
)
def test_a_message_that_is_refused_is_refused_at_its_own_place(message, param, told):
    assert message_refused(message) == (param, told)


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": None}, {"best_of": 1}, {"echo": False}, {"logit_bias": {}}, {"min_p": 0}, {"min_tokens": 0},
        {"repetition_penalty": 1}, {"presence_penalty": 0.0}, {"guided_json": None}, {"structured_outputs": {}},
        {"best_of": 3, "n": 3}, {"frequency_penalty": 0},
        {"tools": []}, {"tool_choice": "none"}, {"response_format": {"type": "text"}}, {"suffix": ""}, {"n": 1},
        {"user": "ada"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"}, {"stop": None},
    ],
)  # fmt: skip
def test_what_asks_for_nothing_special_is_accepted(changes):
    assert (
        completion(**changes).sampling(5, END) == completion(seed=0).sampling(5, END)
        or completion(**changes).seed is None
    )


def test_how_a_request_is_sampled():
    asked = completion(temperature=0.5, top_p=0.9, top_k=7, seed=3)
    assert asked.sampling(11, END) == Sampling(11, 0.5, 7, 0.9, 3, frozenset({0}))
    assert completion(seed=3, ignore_eos=True).sampling(1, END).stop == frozenset()


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_seed_of_openais_range_is_a_seed(seed):
    assert completion(seed=seed).sampling(1, END).seed == completion(seed=seed).sampling(1, END).seed >= 0


def test_without_a_seed_nobody_can_guess_it():
    assert len({completion().sampling(1, END).seed for _ in range(20)}) == 20


def test_a_conversation_is_one_text_that_the_assistant_goes_on_with():
    asked = chat(("system", "Be brief."), ("user", [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}]))
    assert bytes(asked.prompts(BYTES)[0]).decode() == "system: Be brief.\nuser: Hey\nassistant: "


@pytest.mark.parametrize(
    "turns",
    [
        [], [("tool", "x")], [("user", None)], [("user", 3)],
        [("user", [{"type": "image_url", "image_url": {"url": "x"}}])],
    ],
)  # fmt: skip
def test_conversations_that_are_refused(turns):
    with pytest.raises(ValidationError):
        chat(*turns)
