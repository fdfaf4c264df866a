"""An echoed prompt with its log-probabilities, by which evaluation harnesses score a text; and the tokens and strings
that end an answer."""

import httpx
import openai
import pytest
import torch
from real_service import PATIENCE, answer_of, event_data
from threeloops.product.trained import decode, encode, trained

PROMPT = "def main("


@pytest.fixture(scope="module")
def client(shared_service):
    url = f"{shared_service.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(autouse=True)
def _leaves_nothing(service):
    """Nothing of any request is left after each test."""


def ask(client, **asked):
    return client.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | asked)


def expected_logprobs(text):
    """The model's log-probabilities for each token of `text` after the first, computed without any engine."""
    with torch.no_grad():
        return trained("tiny")(torch.tensor([list(encode(text))]))[0, :-1].double().log_softmax(-1)


def scored(body, context_lengths):
    """(log-probability, is greedy) of each prompt after its context, as lm-evaluation-harness reads an answer.

    It takes the tokens after the context but for the last, which is the one that had to be generated.
    """
    found = []
    for choice, length in zip(sorted(body["choices"], key=lambda one: one["index"]), context_lengths, strict=True):
        own, top = (choice["logprobs"][name][length:-1] for name in ("token_logprobs", "top_logprobs"))
        found.append((sum(own), all(one == max(likeliest.values()) for one, likeliest in zip(own, top, strict=True))))
    return found


@pytest.mark.parametrize("ends", [False, True], ids=["the answer goes on", "the answer ends at once"])
def test_lm_evaluation_harness_scores_the_endings_of_its_prompts(service, ends):
    likely = PROMPT + answer_of(PROMPT, 6)
    texts = [likely, PROMPT + "zebra", "import ostrich"]
    asked = {
        "model": "tiny",
        "prompt": [list(text.encode()) for text in texts],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    if ends:
        asked["logit_bias"] = {"0": 100}
    body = httpx.post(f"{service.url}/v1/completions", json=asked, timeout=PATIENCE).json()
    lengths = [len(PROMPT), len(PROMPT), len("import ")]
    expected = []
    for text, length in zip(texts, lengths, strict=True):
        rows, tokens = expected_logprobs(text)[length - 1 :], list(encode(text))[length:]
        own = [row[token].item() for row, token in zip(rows, tokens, strict=True)]
        expected.append((pytest.approx(sum(own), abs=1e-3), rows.argmax(-1).tolist() == tokens))
    assert scored(body, lengths) == expected and [greedy for _, greedy in expected] == [True, False, False]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("count", [0, 2])
def test_an_echo_says_how_likely_each_token_of_the_prompt_was(client, count, is_stream):
    answer = ask(client, echo=True, logprobs=count, stream=is_stream)
    choices = [each.choices[0] for each in (answer if is_stream else [answer])]
    text = "".join(choice.text for choice in choices)
    assert text == PROMPT + answer_of(PROMPT, 12)
    found = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for each in found for token in each.tokens] == list(text)
    assert [offset for each in found for offset in each.text_offset] == list(range(len(text)))
    first, *own = [logprob for each in found for logprob in each.token_logprobs]
    rows = expected_logprobs(text)
    assert first is None
    assert own == pytest.approx(
        [row[token].item() for row, token in zip(rows, encode(text)[1:], strict=True)], abs=1e-4
    )
    if not count:
        assert all(each.top_logprobs is None for each in found)
        return
    first, *top = [likeliest for each in found for likeliest in each.top_logprobs]
    assert first is None
    for likeliest, row, token in zip(top, rows, text[1:], strict=True):
        assert likeliest.keys() == {chr(place) for place in row.topk(count).indices.tolist()} | {token}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_no_tokens_at_all_give_the_prompt_alone(client, logprobs, is_stream):
    asked = {"max_tokens": 0, "echo": True, "logprobs": logprobs, "stream": is_stream}
    answer = ask(client, **asked, **({"stream_options": {"include_usage": True}} if is_stream else {}))
    parts = list(answer) if is_stream else [answer]
    choices = [choice for part in parts for choice in part.choices]
    assert "".join(choice.text for choice in choices) == PROMPT and choices[-1].finish_reason == "length"
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (len(PROMPT), 0)
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert tokens == (list(PROMPT) if logprobs else [])


def test_no_tokens_without_an_echo_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="max_tokens: 0 requires echo = true") as caught:
        ask(client, max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_a_prompt_whose_beginning_is_cached_is_scored_as_before(client):
    """Cached tokens are not computed again, so they give no log-probabilities."""
    prompt = "for each in range(10):\n    print(each)\n" * 2
    ask(client, prompt=prompt)
    assert ask(client, prompt=prompt).usage.prompt_tokens_details.cached_tokens >= 64
    logprobs = ask(client, prompt=prompt, echo=True, logprobs=0, max_tokens=1).choices[0].logprobs.token_logprobs
    rows = expected_logprobs(prompt)
    own = [row[token].item() for row, token in zip(rows, encode(prompt)[1:], strict=True)]
    assert logprobs[1 : len(prompt)] == pytest.approx(own, abs=1e-4)


def test_several_answers_each_begin_with_the_prompt_and_its_tokens(client):
    answer = ask(client, prompt=["import ", PROMPT], n=2, echo=True, logprobs=0, temperature=1.0, seed=1)
    for choice, prompt in zip(answer.choices, ["import ", "import ", PROMPT, PROMPT], strict=True):
        assert choice.text.startswith(prompt) and "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.token_logprobs.count(None) == 1


def test_a_refused_echo_has_a_status_of_its_own(service):
    """The prompt is not sent before the engine has taken the request on."""
    asked = {"model": "tiny", "prompt": "a", "echo": True, "stream": True, "guided_regex": "(a"}
    answer = httpx.post(f"{service.url}/v1/completions", json=asked, timeout=PATIENCE)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "guided_regex"


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_token_that_ends_a_completion_is_reported_at_its_end(client, is_stream):
    answer = ask(client, logit_bias={"0": 100}, logprobs=0, stream=is_stream)
    choices = [each.choices[0] for each in (answer if is_stream else [answer])]
    (found,) = [choice.logprobs for choice in choices if choice.logprobs]
    assert (found.tokens, found.text_offset, choices[-1].finish_reason) == (["\0"], [0], "stop")
    assert "".join(choice.text for choice in choices) == ""


@pytest.mark.parametrize("is_stream", [False, True])
def test_tokens_of_a_stop_string_that_was_cut_off_lie_at_the_end_of_the_text(client, is_stream):
    whole = answer_of(PROMPT, 12)
    answer = ask(client, stop=whole[4:8], logprobs=0, stream=is_stream)
    choices = [each.choices[0] for each in (answer if is_stream else [answer])]
    text = "".join(choice.text for choice in choices)
    assert text == whole[:4] and choices[-1].finish_reason == "stop"
    found = [choice.logprobs for choice in choices if choice.logprobs]
    assert "".join(token for each in found for token in each.tokens) == whole[:8]
    assert [offset for each in found for offset in each.text_offset] == [0, 1, 2, 3, 4, 4, 4, 4]


def test_a_streamed_report_comes_with_the_text_of_its_token(client):
    """A stop string that may begin holds text back, and reports with it."""
    whole = answer_of(PROMPT, 12)
    sent = 0
    for chunk in ask(client, stop=whole[2:6] + "\0", logprobs=0, stream=True):
        (choice,) = chunk.choices
        offsets = choice.logprobs.text_offset if choice.logprobs else []
        assert offsets == list(range(sent, sent + len(choice.text)))
        sent += len(choice.text)
    assert sent == 12


@pytest.mark.parametrize("more", [{}, {"ignore_eos": True}])
def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(client, more):
    whole = answer_of(PROMPT, 12)
    token = whole[5]
    stops = {"stop_token_ids": [ord(token)], **more}
    choice = ask(client, extra_body=stops).choices[0]
    assert (choice.text, choice.finish_reason) == (whole[: whole.index(token)], "stop")
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    said = client.chat.completions.create(**asked).choices[0].message.content
    stops = {"stop_token_ids": [ord(said[3])], **more}
    choice = client.chat.completions.create(**asked, extra_body=stops).choices[0]
    assert (choice.message.content, choice.finish_reason) == (said[: said.index(said[3])], "stop")


def test_a_stop_token_waits_for_the_least_length(client):
    token = ord(answer_of(PROMPT, 12)[5])
    asked = {"stop_token_ids": [token], "min_tokens": 9}
    text = ask(client, extra_body=asked).choices[0].text
    assert len(text) >= 9 and chr(token) not in text[:9]


def test_a_stop_token_must_be_one_of_the_models(client):
    with pytest.raises(openai.BadRequestError, match="token 256 is not in the model's vocabulary of 256") as caught:
        ask(client, extra_body={"stop_token_ids": [7, 256]})
    assert caught.value.param == "stop_token_ids"


def test_events_of_an_echo_are_those_of_the_protocol(service):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2, "echo": True, "logprobs": 1, "stream": True}
    first, *_, done = event_data(httpx.post(f"{service.url}/v1/completions", json=asked, timeout=PATIENCE).text)
    (choice,) = first["choices"]
    assert done == "[DONE]" and choice["text"] == PROMPT == decode(encode(PROMPT))
    assert choice["logprobs"]["token_logprobs"][0] is choice["logprobs"]["top_logprobs"][0] is None
