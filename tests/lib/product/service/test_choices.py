"""Several choices, how likely tokens are, and answers with a form, through OpenAI's client."""

import json
import math
import re

import httpx
import openai
import pytest
import torch
from real_service import PATIENCE, answer_of, event_data
from threeloops.product.request import TokenLogprobs
from threeloops.product.service.generation import Reported, chat_logprobs, completion_logprobs
from threeloops.product.text import ByteTokenizer, load_tokenizer
from threeloops.product.trained import encode, trained
from trained_tokenizer import SIZE, byte_level, write_tokenizer

PROMPT = "def main("


@pytest.fixture(scope="module")
def client(service_url):
    with openai.OpenAI(base_url=f"{service_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def service_url(shared_service):
    return shared_service.url


@pytest.fixture(autouse=True)
def _leaves_nothing(service):
    """Nothing of any request is left after each test."""


def ask(client, **asked):
    return client.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | asked)


def test_choices_are_those_that_each_prompt_gets_alone_in_the_order_of_the_prompts(client):
    prompts = [PROMPT, "import ", "class "]
    answer = ask(client, prompt=prompts, n=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [answer_of(one, 12) for one in prompts for _ in range(2)]
    assert answer.usage.prompt_tokens == sum(map(len, prompts)) and answer.usage.completion_tokens == 6 * 12


def test_a_seed_gives_several_answers_that_differ_and_repeat(client):
    first, second = (
        [choice.text for choice in ask(client, n=4, temperature=1.0, seed=seed).choices] for seed in (7, 7)
    )
    assert first == second and len(set(first)) == 4
    assert first[0] == ask(client, temperature=1.0, seed=7).choices[0].text


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_choices_are_streamed_side_by_side(client, kind):
    if kind == "chat":
        turns = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "seed": 3, "n": 3}
        whole = client.chat.completions.create(model="tiny", **turns)
        chunks = list(client.chat.completions.create(model="tiny", **turns, stream=True))
        texts = [choice.message.content for choice in whole.choices]
    else:
        whole = ask(client, n=3, temperature=1.0, seed=3)
        chunks = list(ask(client, n=3, temperature=1.0, seed=3, stream=True))
        texts = [choice.text for choice in whole.choices]
    streamed, ended = [""] * 3, []
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        streamed[choice.index] += (choice.text if kind == "completion" else choice.delta.content) or ""
        ended += [choice.index] if choice.finish_reason else []
    assert streamed == texts and sorted(ended) == [0, 1, 2]


def test_a_prompt_is_cached_once_whatever_its_answers_are(client):
    """A block has 16 tokens, so a prompt of 37 has two that can be found again."""
    prompts = ["a prompt of thirty-seven characters..", "another one of thirty-seven signs...."]
    assert {len(prompt) for prompt in prompts} == {37}
    first, *again = (
        ask(client, prompt=prompts, **changes).usage
        for changes in ({"n": 4}, {"n": 4}, {"stop": answer_of(prompts[0], 12)[3:6]})
    )
    assert first.prompt_tokens_details.cached_tokens == 0
    assert [each.prompt_tokens_details.cached_tokens for each in again] == [2 * 32] * 2
    *_, last = ask(client, prompt=prompts, n=4, stream=True, stream_options={"include_usage": True})
    assert (last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens) == (2 * 37, 2 * 32)


def test_one_choice_that_stops_early_lets_the_others_go_on(client):
    answer = ask(client, prompt=[PROMPT, "import "], stop=[answer_of(PROMPT, 12)[3:6]])
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert answer.choices[0].text == answer_of(PROMPT, 12)[:3]


def test_an_echo_begins_with_the_prompt(client):
    assert ask(client, echo=True).choices[0].text == PROMPT + answer_of(PROMPT, 12)
    assert "".join(chunk.choices[0].text for chunk in ask(client, echo=True, stream=True)) == (
        PROMPT + answer_of(PROMPT, 12)
    )


def expected_logprobs(text):
    """Of the tokens of `text` after the prompt, computed without any engine."""
    tokens = [*encode(PROMPT), *encode(text)]
    logits = trained("tiny")(torch.tensor([tokens]))[0, len(PROMPT) - 1 : -1]
    return logits.detach().double().log_softmax(-1)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_completion_says_how_likely_its_tokens_were(client, count):
    choice = ask(client, logprobs=count, temperature=0.8, seed=1, presence_penalty=1.0).choices[0]
    found, expected = choice.logprobs, expected_logprobs(choice.text)
    assert "".join(found.tokens) == choice.text and found.text_offset == list(range(12))
    own = [row[token].item() for row, token in zip(expected, encode(choice.text), strict=True)]
    assert found.token_logprobs == pytest.approx(own, abs=1e-4)
    if not count:
        return
    for token, likeliest, row in zip(found.tokens, found.top_logprobs, expected, strict=True):
        best = {chr(place) for place in row.topk(count).indices.tolist()}
        assert likeliest.keys() == best | {token} and max(likeliest.values()) == pytest.approx(
            row.max().item(), abs=1e-4
        )


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_conversation_says_how_likely_its_tokens_were(client, is_stream):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    asked |= {"logprobs": True, "top_logprobs": 2}
    if is_stream:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        text = "".join(choice.delta.content or "" for choice in choices)
        tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    else:
        (choice,) = client.chat.completions.create(**asked).choices
        text, tokens = choice.message.content, choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == text and len(tokens) == 8
    for token in tokens:
        first, second = token.top_logprobs
        assert (first.token, first.logprob) == (token.token, token.logprob) and second.logprob <= first.logprob <= 0


def test_bytes_that_are_no_text_alone_are_told_apart():
    first = TokenLogprobs(-1.0, ((0xC3, -1.0), (0xC2, -2.0)))
    told = completion_logprobs([Reported(0xC3, first, 4), Reported(0xA9, TokenLogprobs(-0.5), 4)], ByteTokenizer(), 2)
    assert told["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"] and len(told["top_logprobs"][0]) == 2
    assert told["text_offset"] == [4, 4]


def test_tokens_that_add_no_text_are_told_by_their_own(tmp_path):
    """A special token by its text, and one that only fills the embedding by its number."""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level())))
    (start,), (end,) = map(tokenizer.encode, ("<|im_start|>", "<|im_end|>"))
    found = TokenLogprobs(-1.0, ((end, -1.0), (start, -2.0), (SIZE + 1, -3.0), (SIZE + 2, -4.0)))
    told = completion_logprobs([Reported(end, found, 0)], tokenizer, 4)
    names = ["<|im_end|>", "<|im_start|>", f"token_id:{SIZE + 1}", f"token_id:{SIZE + 2}"]
    assert told["tokens"] == names[:1] and list(told["top_logprobs"][0]) == names
    (likely,) = chat_logprobs([Reported(end, found, 0)], tokenizer)["content"]
    assert [each["token"] for each in likely["top_logprobs"]] == names and likely["bytes"] == []


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("letters", [{0xE4: 100, 0x41: 90, 0xFF: 100}, {0x41: 100, 0x42: 100}], ids=["no text", "text"])
def test_offsets_index_the_text_streamed_or_not(client, letters, is_stream):
    """Bytes of no character are replacement characters in it, and a stop string that may begin holds text back."""
    drawn = {"logit_bias": {str(token): bias for token, bias in letters.items()}, "frequency_penalty": 2.0}
    answer = ask(client, **drawn, logprobs=0, stop="AB" * 12, temperature=1, seed=5, stream=is_stream)
    choices = [each.choices[0] for each in (answer if is_stream else [answer])]
    text = "".join(choice.text for choice in choices)
    told = [choice.logprobs for choice in choices if choice.logprobs]
    offsets = [offset for each in told for offset in each.text_offset]
    shown = [token for each in told for token in each.tokens]
    assert offsets == list(range(12)) and len(text) == 12
    assert [token if len(token) == 1 else "\ufffd" for token in shown] == list(text) and len(set(shown)) > 1


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("field", ["response_format", "guided_json", "structured_outputs"])
def test_an_answer_is_valid_by_its_schema(client, field):
    form = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}},
        "guided_json": SCHEMA,
        "structured_outputs": {"json": json.dumps(SCHEMA)},
    }[field]
    turns = [{"role": "user", "content": "who?"}]
    answer = client.chat.completions.create(
        model="tiny", messages=turns, max_tokens=60, temperature=1.0, n=3, extra_body={field: form}
    )
    for choice in answer.choices:
        found = json.loads(choice.message.content)
        assert choice.finish_reason == "stop" and found.keys() == {"name", "age"}
        assert len(found["name"]) <= 5 and 0 <= found["age"] <= 99


def test_an_answer_has_the_form_of_an_expression_or_is_one_of_a_choice(client):
    assert re.fullmatch("[0-9]{3}-[a-c]", ask(client, extra_body={"guided_regex": "[0-9]{3}-[a-c]"}).choices[0].text)
    chosen = ask(client, n=8, temperature=2.0, extra_body={"guided_choice": ["yes", "no"], "ignore_eos": True})
    assert {choice.text for choice in chosen.choices} <= {"yes", "no"}
    assert {choice.finish_reason for choice in chosen.choices} == {"stop"}
    found = ask(client, max_tokens=100, extra_body={"response_format": {"type": "json_object"}}).choices[0]
    assert found.finish_reason == "length" or isinstance(json.loads(found.text), dict)


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_an_answer_cannot_follow_any_further_is_the_clients_fault(service, stream):
    """In this model the byte 0 ends a text, so no answer can contain it."""
    body = {"model": "tiny", "prompt": PROMPT, "guided_choice": ["Z", "a" * 20 + "\0"], "logit_bias": {"97": 100}}
    answer = httpx.post(
        f"{service.url}/v1/completions", json=body | {"stream": stream, "max_tokens": 40}, timeout=PATIENCE
    )
    *texts, last = event_data(answer.text) if stream else [answer.json()]
    assert "".join(each["choices"][0]["text"] for each in texts) == ("a" * 20 if stream else "")
    assert answer.status_code == (200 if stream else 400)
    error = last["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "guided_choice")
    assert error["message"].startswith("guided_choice: it cannot be followed any further: ")


def test_a_bias_and_a_least_length(client):
    assert ask(client, logit_bias={"65": 100}).choices[0].text == "A" * 12
    stop = answer_of(PROMPT, 12)[3:5]
    assert len(ask(client, stop=[stop]).choices[0].text) == 3
    assert ask(client, stop=[stop], extra_body={"min_tokens": 12}).choices[0].text == answer_of(PROMPT, 12)


def test_a_client_that_leaves_takes_all_of_its_choices_along(service):
    body = {"model": "tiny", "prompt": [PROMPT] * 6, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=PATIENCE) as answer:
        next(answer.iter_bytes())
    service.settle()


def test_events_of_several_choices_have_their_indices(service):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "n": 2, "stream": True, "logprobs": 1}
    *events, done = event_data(httpx.post(f"{service.url}/v1/completions", json=body, timeout=PATIENCE).text)
    assert done == "[DONE]" and {event["choices"][0]["index"] for event in events} == {0, 1}
    logprobs = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    assert len(logprobs) == 6 and all(math.isfinite(one["token_logprobs"][0]) for one in logprobs)
