"""A folder as it is published, a Qwen2 with its own tokenizer, served in a process of its own to the clients that
people have: every text is the one that transformers generates from the same folder."""

import json
import subprocess
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from real_service import PATIENCE, ServiceProcess, event_data
from threeloops.models.llama_folder import load_llama_folder
from threeloops.product.quantized.gguf import export_gguf, read_tokenizer
from trained_tokenizer import qwen2_folder

PROMPTS = ["The model serves ", "你好，", "é\u0301 👋🏽\r\n  ", "<|im_start|>user\nhi<|im_end|>\n"]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello 你好"}]
TOKENS = 40


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client, the process, and the model and tokenizer of transformers."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "small-qwen"
    model = qwen2_folder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    _, made = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
    end = next(token for at, token in enumerate(made) if at > TOKENS // 2 and token not in made[:at])
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    model.generation_config.save_pretrained(folder)
    with ServiceProcess("--model", str(folder)) as server:
        server.wait_ready()
        yield OpenAI(base_url=f"{server.url}/v1", api_key="none"), server, model, tokenizer


def generated(model, tokenizer, tokens, count=TOKENS):
    """(text, tokens) that transformers goes on with at temperature 0. A token that ends the text is not part of it."""
    import torch

    ends = model.generation_config.eos_token_id
    made = model.generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=ends)
    made = made[0, len(tokens) :].tolist()
    return tokenizer.decode(made[:-1] if made[-1] in ends else made, skip_special_tokens=True), made


@pytest.mark.parametrize("prompt", PROMPTS, ids=repr)
def test_openais_client_streams_the_text_that_transformers_generates(served, prompt):
    client, _, model, tokenizer = served
    text, made = generated(model, tokenizer, tokenizer.encode(prompt))
    chunks = list(
        client.completions.create(
            model="small-qwen", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == text
    reason = "stop" if made[-1] in model.generation_config.eos_token_id else "length"
    assert chunks[-2].choices[0].finish_reason == reason
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (
        len(tokenizer.encode(prompt)),
        len(made),
    )


def test_curl_streams_the_same_text_and_the_end_token_ends_it_without_being_in_it(served):
    _, server, model, tokenizer = served
    text, made = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
    assert made[-1] == model.generation_config.eos_token_id[1] and len(made) < TOKENS
    asked = {"model": "small-qwen", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0, "stream": True}
    words = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*words, "-d", json.dumps(asked)], capture_output=True, timeout=PATIENCE, check=True)
    *events, last = event_data(done.stdout.decode())
    assert last == "[DONE]" and events[-1]["choices"][0]["finish_reason"] == "stop"
    assert "".join(event["choices"][0]["text"] for event in events) == text


def test_a_text_goes_on_after_its_end_if_it_is_asked_to(served):
    client, _, model, tokenizer = served
    text, _ = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
    asked = {"model": "small-qwen", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0}
    choice = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0]
    assert choice.finish_reason == "length" and choice.text.startswith(text) and len(choice.text) > len(text)


def test_a_chat_is_rendered_by_the_folders_template(served):
    client, _, model, tokenizer = served
    tokens = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]
    text, _ = generated(model, tokenizer, tokens, 24)
    answer = client.chat.completions.create(model="small-qwen", messages=TURNS, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content == text
    assert answer.usage.prompt_tokens == len(tokens)


def test_a_stop_string_that_begins_in_one_token_and_ends_in_another_is_cut(served):
    client, _, model, tokenizer = served
    text, made = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
    first = tokenizer.decode(made[:3])
    stop = text[len(first) - 2 : len(first) + 2]
    assert text.index(stop) == len(first) - 2
    asked = {"model": "small-qwen", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0, "stop": stop}
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text[: len(first) - 2]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_prompt_of_tokens_is_taken_as_it_is_and_must_be_of_the_models_vocabulary(served):
    client, _, model, tokenizer = served
    tokens = tokenizer.encode(PROMPTS[1])
    asked = {"model": "small-qwen", "max_tokens": 8, "temperature": 0}
    assert (
        client.completions.create(prompt=tokens, **asked).choices[0].text == generated(model, tokenizer, tokens, 8)[0]
    )
    size = model.config.vocab_size
    with pytest.raises(
        BadRequestError, match=f"prompt: token {size} is not in the model's vocabulary of {size} tokens"
    ):
        client.completions.create(prompt=[size], **asked)


def test_a_long_prompt_is_encoded_while_others_are_answered_and_refused_by_its_tokens(served):
    client, _, model, tokenizer = served
    prompt = "serve " * 20_000
    with pytest.raises(BadRequestError, match=rf"the prompt \({len(tokenizer.encode(prompt))} tokens\) leaves no room"):
        client.completions.create(model="small-qwen", prompt=prompt)


def test_a_gguf_file_is_served_with_its_own_vocabulary_under_the_name_that_it_is_given(served, tmp_path):
    _, _, model, tokenizer = served
    folder, file = tokenizer.name_or_path, tmp_path / "small.gguf"
    export_gguf(load_llama_folder(folder), file, vocabulary=read_tokenizer(Path(folder)))
    with ServiceProcess("--model", str(file), "--served-model-name", "org/small", "--blocks", "64") as server:
        client = OpenAI(base_url=f"{server.wait_ready().url}/v1", api_key="none")
        assert [served.id for served in client.models.list()] == ["org/small"]
        asked = {"model": "org/small", "max_tokens": TOKENS, "temperature": 0}
        text, _ = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
        assert client.completions.create(prompt=PROMPTS[0], **asked).choices[0].text == text
        tokens = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]
        answer = client.chat.completions.create(messages=TURNS, **asked)
        assert answer.usage.prompt_tokens == len(tokens)
        assert answer.choices[0].message.content == generated(model, tokenizer, tokens)[0]


@pytest.mark.parametrize("choice", ["你好", "<b>yes</b>", "👋🏽 no"])
def test_an_answer_with_a_form_is_spelled_in_the_models_own_tokens(served, choice):
    client, _, _, _ = served
    asked = {"model": "small-qwen", "messages": TURNS, "max_tokens": TOKENS, "temperature": 0}
    answer = client.chat.completions.create(**asked, extra_body={"guided_choice": [choice]})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (choice, "stop")


def test_logprobs_name_the_models_own_tokens(served):
    client, _, model, tokenizer = served
    text, made = generated(model, tokenizer, tokenizer.encode(PROMPTS[1]), 8)
    asked = {"model": "small-qwen", "prompt": PROMPTS[1], "max_tokens": 8, "temperature": 0}
    choice = client.completions.create(**asked, logprobs=2).choices[0]
    whole = [token for token in choice.logprobs.tokens if not token.startswith("bytes:")]
    assert len(choice.logprobs.tokens) == len(made) and choice.text == text
    assert whole and whole == [word for word in map(tokenizer.decode, made) if "\ufffd" not in word]


def test_an_echo_is_the_prompt_as_it_was_sent_or_the_text_of_its_tokens(served):
    client, _, model, tokenizer = served
    prompt, asked = PROMPTS[-1], {"model": "small-qwen", "max_tokens": 8, "temperature": 0, "echo": True}
    tokens = tokenizer.encode(prompt)
    text, _ = generated(model, tokenizer, tokens, 8)
    assert client.completions.create(prompt=prompt, **asked).choices[0].text == prompt + text
    plain = tokenizer.decode(tokens, skip_special_tokens=True)
    assert (
        "<|im_start|>" in prompt and client.completions.create(prompt=tokens, **asked).choices[0].text == plain + text
    )


@pytest.mark.parametrize("prompt", PROMPTS, ids=repr)
@pytest.mark.parametrize("sends_tokens", [False, True])
def test_an_echo_reports_the_models_own_tokens_at_their_places(served, prompt, sends_tokens):
    """The sum is transformers' own, and each text stands at its offset unless Unicode composes its characters."""
    import torch

    client, _, model, tokenizer = served
    tokens = tokenizer.encode(prompt)
    asked = {"model": "small-qwen", "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": 1}
    choice = client.completions.create(prompt=tokens if sends_tokens else prompt, **asked).choices[0]
    found = choice.logprobs
    with torch.no_grad():
        rows = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    own = [row[token].item() for row, token in zip(rows, tokens[1:], strict=True)]
    assert found.token_logprobs[0] is None and found.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
    assert len(found.tokens) == len(tokens) == len(found.text_offset)
    assert sorted(found.text_offset) == found.text_offset and found.text_offset[-1] <= len(choice.text)
    is_special = [token in tokenizer.all_special_ids for token in tokens]
    for token, offset, has_no_text in zip(found.tokens, found.text_offset, is_special, strict=True):
        is_whole = not token.startswith("bytes:") and "\u0301" not in prompt
        if is_whole and not (has_no_text and sends_tokens):
            assert choice.text.startswith(token, offset)
