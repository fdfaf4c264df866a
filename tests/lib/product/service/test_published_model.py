"""A folder as it is published, a Qwen2 with its own tokenizer, served in a process of its own to the clients that
people have: every text is the one that transformers generates from the same folder."""

import json
import subprocess

import pytest
from openai import BadRequestError, OpenAI
from real_service import PATIENCE, ServiceProcess, event_data
from trained_tokenizer import qwen2_folder

ENDS_EARLY = 3
"""A seed of weights with which the model ends the first prompt's text by itself."""
PROMPTS = ["The model serves ", "你好，", "é\u0301 👋🏽\r\n  ", "<|im_start|>user\nhi<|im_end|>\n"]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello 你好"}]
TOKENS = 40


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client, the process, and the model and tokenizer of transformers."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "small-qwen"
    model = qwen2_folder(folder, seed=ENDS_EARLY)
    with ServiceProcess("--model", str(folder)) as server:
        server.wait_ready()
        yield OpenAI(base_url=f"{server.url}/v1", api_key="none"), server, model, AutoTokenizer.from_pretrained(folder)


def generated(model, tokenizer, tokens, count=TOKENS):
    """(text, tokens) that transformers goes on with at temperature 0."""
    import torch

    made = model.generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False)[0, len(tokens) :].tolist()
    return tokenizer.decode(made, skip_special_tokens=True), made


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
    reason = "stop" if made[-1] == tokenizer.eos_token_id else "length"
    assert chunks[-2].choices[0].finish_reason == reason
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (
        len(tokenizer.encode(prompt)),
        len(made),
    )


def test_curl_streams_the_same_text_and_the_end_token_ends_it_without_being_in_it(served):
    _, server, model, tokenizer = served
    text, made = generated(model, tokenizer, tokenizer.encode(PROMPTS[0]))
    assert made[-1] == tokenizer.eos_token_id and len(made) < TOKENS
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
    with pytest.raises(BadRequestError, match=rf"prompt \({len(tokenizer.encode(prompt))} tokens\) and max_tokens"):
        client.completions.create(model="small-qwen", prompt=prompt)


def test_a_model_has_the_name_that_it_is_given_and_its_bits_can_be_fewer_and_without_a_template_it_does_not_chat(
    served, tmp_path
):
    folder = tmp_path / "base"
    qwen2_folder(folder)
    (folder / "chat_template.jinja").unlink()
    words = ["--served-model-name", "org/base", "--dtype", "bfloat16", "--quantization", "int8", "--blocks", "64"]
    with ServiceProcess("--model", str(folder), *words) as server:
        client = OpenAI(base_url=f"{server.wait_ready().url}/v1", api_key="none")
        assert [model.id for model in client.models.list()] == ["org/base"]
        answer = client.completions.create(model="org/base", prompt="The ", max_tokens=4, temperature=0)
        assert answer.usage.completion_tokens == 4
        with pytest.raises(BadRequestError, match="messages: the model has no chat template in .*base: send a prompt"):
            client.chat.completions.create(model="org/base", messages=TURNS)
