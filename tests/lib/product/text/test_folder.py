"""Tokenizers of folders: tokens and texts are those of transformers, whole or streamed, whatever the text."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.product.text import load_tokenizer
from trained_tokenizer import byte_fallback, byte_level, metaspace, write_tokenizer
from transformers import PreTrainedTokenizerFast

AWKWARD = [
    "hello world", "  two  spaces ", " ", "", "a\r\nb\r\n\r\n\tc", "x" + " " * 50 + "y", "\x00\x01",
    "你好，世界", "e\u0301 é n\u0303o", "👩‍👩‍👧👋🏽", "ﷺ", "né xĠy ▁a▁ <0xE4>", " lead",
    "<|im_start|>user\nhi<|im_end|>", "<s>hi</s> you <unk>", "<tool_call>x</tool_call> <tool_call>",
]  # fmt: skip
"""Special tokens and bytes of the vocabulary among them, as a user may type them."""


@pytest.fixture(scope="module", params=[byte_level, byte_fallback, metaspace], ids=lambda made: made.__name__)
def pair(request, tmp_path_factory):
    """Our tokenizer of a folder, and that of transformers."""
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if request.param is byte_level:
        named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    folder = write_tokenizer(tmp_path_factory.mktemp("folder"), request.param(), **named)
    return load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)


def streamed(tokenizer, tokens, **how):
    decoder = tokenizer.decoder(**how)
    return [*(decoder.push([token]) for token in tokens), decoder.end()]


@pytest.mark.parametrize("text", AWKWARD, ids=repr)
def test_an_awkward_text_has_the_tokens_of_transformers_and_comes_back_as_theirs(pair, text):
    ours, theirs = pair
    tokens = ours.encode(text)
    assert list(tokens) == theirs.encode(text)
    pieces = streamed(ours, tokens)
    assert "".join(pieces) == theirs.decode(tokens, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces), "half a character was sent"


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_every_text_has_the_tokens_and_the_decoding_of_transformers(pair, text):
    ours, theirs = pair
    tokens = ours.encode(text)
    assert list(tokens) == theirs.encode(text)
    assert "".join(streamed(ours, tokens)) == theirs.decode(tokens, skip_special_tokens=True)


def test_tokens_in_any_order_decode_as_with_transformers(pair):
    """Also tokens that no model has, and bytes that are not UTF-8. For single tokens of bytes that are not, the library
    also replaces the characters around them: a stream has sent these before."""
    ours, theirs = pair
    chance = random.Random(0)
    for _ in range(500):
        tokens = [chance.randrange(ours.vocabulary + 5) for _ in range(chance.randrange(1, 12))]
        wanted = theirs.decode(tokens, skip_special_tokens=True)
        named = theirs.convert_ids_to_tokens(tokens)
        if "\ufffd" in wanted and any(str(name).startswith("<0x") for name in named):
            continue
        assert "".join(streamed(ours, tokens)) == wanted, named


def test_a_text_that_goes_on_keeps_the_space_that_a_new_text_drops(tmp_path):
    ours = load_tokenizer(str(write_tokenizer(tmp_path, byte_fallback())))
    tokens = ours.encode("The model")[1:]  # without <s>
    assert "".join(streamed(ours, tokens)) == "The model"
    assert "".join(streamed(ours, tokens, continues=True)) == " The model"


FLAGS = [
    {}, {"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False},
]  # fmt: skip


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_post_processor_of_the_file_puts_special_tokens_around_a_text_whatever_the_settings_say(tmp_path, flags):
    folder = write_tokenizer(tmp_path, byte_fallback(), bos_token="<s>", eos_token="</s>", **flags)
    ours, theirs = load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)
    tokens = ours.encode("hello")
    assert list(tokens) == theirs.encode("hello") and tokens[0] == theirs.bos_token_id


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_without_a_post_processor_the_settings_put_them_there(tmp_path, flags):
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    ours = load_tokenizer(str(write_tokenizer(tmp_path, byte_level(), **named, **flags)))
    inner = load_tokenizer(str(write_tokenizer(tmp_path / "inner", byte_level()))).encode("hello")
    first, last = (0,) if flags.get("add_bos_token") else (), (2,) if flags.get("add_eos_token") else ()
    assert ours.encode("hello") == (*first, *inner, *last)


def test_tokens_that_only_the_settings_name_are_special(tmp_path):
    """They may be written with how they match, be in no vocabulary yet, or be special only by the settings."""
    described = json.loads(byte_level())
    number = next(each["id"] for each in described["added_tokens"] if each["content"] == "<tool_call>")
    settings = {
        "eos_token": {"content": "<end>", "lstrip": True, "__type": "AddedToken"},
        "extra_special_tokens": ["<more>"],
        "added_tokens_decoder": {
            str(number): {"content": "<tool_call>", "special": True, "lstrip": False, "rstrip": False,
                          "single_word": False, "normalized": False},
        },
    }  # fmt: skip
    folder = write_tokenizer(tmp_path, byte_level(), **settings)
    ours, theirs = load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in ("a  <end> b <more><tool_call>c</tool_call>", "<end", "<tool_call"):
        tokens = ours.encode(text)
        assert list(tokens) == theirs.encode(text)
        assert "".join(streamed(ours, tokens)) == theirs.decode(tokens, skip_special_tokens=True)
    assert ours.end_tokens == {theirs.eos_token_id}


@pytest.mark.parametrize(
    ("generation", "config", "tokens"),
    [
        (None, {"eos_token_id": 7}, {7, 2}),
        (None, {"eos_token_id": [7, 8]}, {7, 8, 2}),
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, {5, 6, 2}),
        ({"temperature": 0.6}, {"eos_token_id": 7}, {7, 2}),
        (None, {}, {2}),
    ],
)
def test_a_text_ends_with_the_tokens_of_the_generation_config_or_else_of_the_config(
    tmp_path, generation, config, tokens
):
    write_tokenizer(tmp_path, byte_level(), eos_token="<|im_end|>")
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_tokenizer(str(tmp_path)).end_tokens == tokens


def test_truncation_and_padding_of_the_file_are_those_of_its_training_and_not_of_a_prompt(tmp_path):
    described = json.loads(byte_level())
    described["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    described["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    whole = load_tokenizer(str(write_tokenizer(tmp_path / "a", byte_level())))
    ours = load_tokenizer(str(write_tokenizer(tmp_path / "b", json.dumps(described))))
    for text in ("one two three four five six", "a"):
        assert ours.encode(text) == whole.encode(text)


def test_half_of_a_surrogate_pair_is_not_text(pair):
    with pytest.raises(ValueError, match="character 1 is half of a surrogate pair"):
        pair[0].encode("a\ud800")


def test_tokenizers_with_other_settings_have_other_fingerprints(tmp_path):
    made = [
        load_tokenizer(str(write_tokenizer(tmp_path / name, byte_level(), **changes)))
        for name, changes in (("a", {}), ("b", {}), ("c", {"eos_token": "<|im_end|>"}))
    ]
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read as a tokenizer .*: download it again"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds a list: expected an object"),
        ("generation_config.json", "nothing", "generation_config.json is not JSON"),
        ("config.json", '{"eos_token_id": "</s>"}', "eos_token_id = '</s>': expected the number of a token"),
        ("chat_template.jinja", "a\n{% if %}", "chat_template.jinja: the chat template is not valid in line 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, text, sentence):
    write_tokenizer(tmp_path, byte_level())
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_tokenizer(str(tmp_path))


def test_a_decoder_that_looks_at_more_than_a_token_is_refused_by_name(tmp_path):
    described = json.loads(byte_level())
    described["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    write_tokenizer(tmp_path, json.dumps(described))
    with pytest.raises(ValueError, match="the decoder contains .*WordPiece.*: expected only ByteLevel"):
        load_tokenizer(str(tmp_path))
