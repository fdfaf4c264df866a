"""llama.cpp runs the files that are written here: on tokens, on text, and with a published model's own vocabulary.

`tests/lib/models/test_variants.py` compares every variant of architecture.
"""

import json

import pytest
import torch
from llama_cpp import ask, largest_difference, served
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode.contiguous import generate
from threeloops.product.quantized.gguf import TensorType, byte_vocabulary, export_gguf, load_gguf, read_tokenizer
from threeloops.product.quantized.gguf.vocabulary import _PRE, TokenType
from threeloops.product.request import Sampling
from threeloops.product.text import load_tokenizer
from threeloops.product.trained import trained
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PROMPT = "def parse_args(self, "
TEXTS = (
    "Hello world's 12345 été  naïve\n\n  x = 1\t你好 🙂",
    "<|user|>hi<|end|>\n",
    "  leading and trailing  ",
    "WE'RE here:   don't!?\r\n\r\nTab\tand 1,000,000.5 end",
)


# llama.cpp rounds inputs too: to 8 bits for weights of 8 and 4 bits, and to float16 for those in float16.
@pytest.mark.parametrize(
    ("type", "difference"),
    [(TensorType.F32, 1e-4), (TensorType.F16, 0.01), (TensorType.Q8_0, 0.2), (TensorType.Q4_0, 0.4)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_courses_model_gives_the_same_probabilities(tmp_path, type, difference):
    export_gguf(trained("tiny"), tmp_path / "a.gguf", type)
    ours = load_gguf(tmp_path / "a.gguf")
    assert largest_difference(served(tmp_path / "a.gguf"), ours, list(PROMPT.encode())) < difference


def test_text_is_the_bytes_of_the_courses_model(tmp_path):
    model = trained("tiny")
    export_gguf(model, tmp_path / "a.gguf")
    server = served(tmp_path / "a.gguf")
    for text in (*TEXTS, bytes(range(1, 128)).decode()):
        assert ask(server, "/tokenize", content=text) == {"tokens": list(text.encode())}
        assert ask(server, "/detokenize", tokens=list(text.encode())) == {"content": text}
    answer = server.handle_completions({"prompt": PROMPT, "max_tokens": 24, "temperature": 0})
    ours = generate(model, [list(PROMPT.encode())], Sampling(max_tokens=24))[0]
    assert answer["choices"][0]["text"].encode() == bytes(ours)


def test_a_model_without_a_vocabulary_runs_on_tokens(tmp_path):
    torch.manual_seed(0)
    export_gguf(GPT(GPTConfig.tiny(vocabulary_size=50)), tmp_path / "a.gguf")
    server = served(tmp_path / "a.gguf")
    assert ask(server, "/detokenize", tokens=[7, 49]) == {"content": "<7><49>"}
    answer = server.handle_completions({"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0})
    assert answer["usage"]["prompt_tokens"] == 3


def tokenizer(pre, folder, **settings):
    """A byte-level BPE that was trained here, which cuts text as a published family does; saved in a folder."""
    made = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "gpt-2")
    if pre != "gpt-2":
        (pattern,) = [pattern for pattern, name in _PRE.items() if name == pre]
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        bytes_only = pre_tokenizers.Sequence([cut, bytes_only])
    made.pre_tokenizer, made.decoder = bytes_only, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([__doc__, *TEXTS, *map(str, range(2000))] * 2, trainer)
    made.add_tokens(["added here"])
    if pre == "llama-bpe":
        made.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 1)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **settings}))
    return made


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_a_published_models_tokenizer_becomes_the_vocabulary(tmp_path, pre):
    theirs = tokenizer(pre, tmp_path, chat_template="{{ messages[0].content }}")
    torch.manual_seed(0)
    vocabulary = read_tokenizer(tmp_path)
    export_gguf(GPT(GPTConfig.tiny(vocabulary_size=640)), tmp_path / "a.gguf", vocabulary=vocabulary)
    server = served(tmp_path / "a.gguf")
    for text in (*TEXTS, "this was added here, and more"):
        tokens = theirs.encode(text).ids
        assert ask(server, "/tokenize", content=text, add_special=True, parse_special=True) == {"tokens": tokens}
        shown = theirs.decode(tokens, skip_special_tokens=False)
        assert ask(server, "/detokenize", tokens=tokens) == {"content": shown}
    assert vocabulary.chat_template == "{{ messages[0].content }}"
    assert vocabulary.tokens[vocabulary.end] == "<|end|>" and vocabulary.types[vocabulary.end] == TokenType.CONTROL
    assert vocabulary.types[theirs.token_to_id("added here")] == TokenType.USER_DEFINED
    assert vocabulary.add_begin == (pre == "llama-bpe")


def test_settings_beside_the_tokenizer_name_its_special_tokens(tmp_path):
    tokenizer("gpt-2", tmp_path, bos_token={"content": "<|user|>"}, add_bos_token=True)
    (tmp_path / "chat_template.jinja").write_text("from a file")
    found = read_tokenizer(tmp_path)
    assert (found.begin, found.add_begin, found.end, found.chat_template) == (1, True, 0, "from a file")
    values = found.metadata(len(found.tokens) + 2)
    assert values["tokenizer.ggml.tokens"][-2:] == [f"[PAD{len(found.tokens) + each}]" for each in (0, 1)]
    assert values["tokenizer.ggml.token_type"][-3:] == [TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNUSED]
    assert values["tokenizer.ggml.bos_token_id"] == 1 and values["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize("count", [0, 1, 2])
def test_llama_cpp_stops_at_every_token_that_ends_a_text(tmp_path, count):
    """None of the tokens has a name that llama.cpp knows by itself, so it knows them by the file's keys alone."""
    made = tokenizer("gpt-2", tmp_path)
    ends = [0, *(made.token_to_id(text) for text in ("<|user|>", "added here")[:count])]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    torch.manual_seed(0)
    file = tmp_path / "a.gguf"
    export_gguf(GPT(GPTConfig.tiny(vocabulary_size=640)), file, vocabulary=read_tokenizer(tmp_path))
    assert load_tokenizer(str(file)).end_tokens == load_tokenizer(str(tmp_path)).end_tokens == set(ends)
    server, other = served(file), made.token_to_id("e")
    for token in (*ends, other):
        answer = ask(server, "/completion", prompt=[1, 2], n_predict=5, temperature=0, logit_bias=[[token, 1000]])
        generated = 1 if token in ends else 5
        assert (answer["tokens_predicted"], answer["stop_type"]) == (generated, "eos" if token in ends else "limit")


def test_the_end_of_a_message_has_a_key_of_its_own(tmp_path):
    made = tokenizer("llama-bpe", tmp_path)
    made.add_special_tokens(["<|eom_id|>", "<|eot_id|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    message, turn = map(made.token_to_id, ("<|eom_id|>", "<|eot_id|>"))
    for ends, expected in (([message], {"eom": message}), ([message, turn], {"eom": message, "eot": turn}), ([0], {})):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        values = read_tokenizer(tmp_path).metadata(640)
        names = {name: values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")}
        assert {name: token for name, token in names.items() if token is not None} == expected


@pytest.mark.parametrize("ends", [[1, 2, 3], [640]], ids=["too many", "beyond the model"])
def test_ends_that_a_file_cannot_name_are_refused(tmp_path, ends):
    tokenizer("gpt-2", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with pytest.raises(ValueError, match=r"the tokens \[0, .* end a text: expected at most three, each below 640"):
        read_tokenizer(tmp_path).metadata(640)


def test_tokenizers_that_llama_cpp_does_not_know_as_byte_level_bpe_are_named(tmp_path):
    made = tokenizer("gpt-2", tmp_path)
    for name, value, words in (
        ("pre_tokenizer", pre_tokenizers.Whitespace(), '"Whitespace"'),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True), '"add_prefix_space": true'),
        ("normalizer", normalizers.Lowercase(), '"Lowercase"'),
        ("model", models.BPE(byte_fallback=True), '"byte_fallback": true'),
        ("model", models.WordLevel({"a": 0, "<|end|>": 1}, "a"), '"WordLevel"'),
    ):
        changed = Tokenizer.from_str(made.to_str())
        setattr(changed, name, value)
        changed.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ValueError, match=f"has {name} = .*{words}.*: expected byte-level BPE as in GPT-2"):
            read_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path):
    tokenizer("gpt-2", tmp_path, eos_token=None)
    words = "names no eos_token: expected one in tokenizer_config.json or special_tokens_map.json; without one, llama"
    with pytest.raises(ValueError, match=words):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=words):
        read_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no tokenizer.json: expected the folder of a published model"):
        read_tokenizer(tmp_path)


def around(*parts):
    """A post-processor that puts special tokens around a text."""
    known = {"<|end|>": 0, "<|user|>": 1}
    used = [(part, known[part]) for part in sorted({*parts} & {*known})]
    return processors.TemplateProcessing(single=list(parts), special_tokens=used)


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        (None, {"add_eos_token": True}),
        (None, {"add_bos_token": True, "add_eos_token": True}),
        (around("$A", "<|end|>"), {}),
        (around("<|user|>", "$A", "<|end|>"), {}),
        (around("$A"), {"add_bos_token": True, "add_eos_token": True}),
        (processors.ByteLevel(), {"add_bos_token": True}),
        (processors.Sequence([processors.ByteLevel(), around("<|user|>", "$A")]), {"add_eos_token": True}),
    ],
    ids=["end by setting", "both by setting", "end", "both", "neither", "only bytes", "begin in a sequence"],
)
def test_special_tokens_around_a_text_are_those_of_the_folder(tmp_path, processor, settings):
    made = tokenizer("gpt-2", tmp_path, bos_token="<|user|>", **settings)
    if processor is not None:
        made.post_processor = processor
        made.save(str(tmp_path / "tokenizer.json"))
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(vocabulary_size=640))
    export_gguf(model, tmp_path / "a.gguf", vocabulary=read_tokenizer(tmp_path))
    expected = list(load_tokenizer(str(tmp_path)).encode("hello"))
    assert list(load_tokenizer(str(tmp_path / "a.gguf")).encode("hello")) == expected
    assert ask(served(tmp_path / "a.gguf"), "/tokenize", content="hello", add_special=True) == {"tokens": expected}


@pytest.mark.parametrize(
    "processor",
    [
        around("<|user|>", "<|end|>", "$A"),
        around("$A", "<|user|>"),
        processors.BertProcessing(("<|end|>", 0), ("<|user|>", 1)),
    ],
    ids=["two before", "another after", "another kind"],
)
def test_special_tokens_that_llama_cpp_does_not_put_around_a_text_are_refused(tmp_path, processor):
    made = tokenizer("gpt-2", tmp_path)
    made.post_processor = processor
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="has post_processor = .*: expected at most one token before a text, and noth"):
        read_tokenizer(tmp_path)


def test_an_end_of_text_that_only_the_map_of_special_tokens_names_is_read(tmp_path):
    tokenizer("gpt-2", tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|user|>"}}))
    assert {read_tokenizer(tmp_path).end} == load_tokenizer(str(tmp_path)).end_tokens == {1}


def test_a_token_that_only_the_settings_add_is_in_the_vocabulary(tmp_path):
    made = tokenizer("gpt-2", tmp_path, eos_token="<|stop|>")
    found = read_tokenizer(tmp_path)
    assert found.end == made.get_vocab_size() and found.tokens[found.end] == "<|stop|>"
    assert found.types[found.end] == TokenType.CONTROL


def test_the_default_of_several_chat_templates_is_written(tmp_path):
    templates = [{"name": "tools", "template": "other"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    tokenizer("gpt-2", tmp_path, chat_template=templates)
    vocabulary = read_tokenizer(tmp_path)
    export_gguf(GPT(GPTConfig.tiny(vocabulary_size=640)), tmp_path / "a.gguf", vocabulary=vocabulary)
    turn = [{"role": "user", "content": "hello"}]
    theirs = load_tokenizer(str(tmp_path)).encode_chat(turn)
    assert load_tokenizer(str(tmp_path / "a.gguf")).encode_chat(turn) == theirs


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(tmp_path, name):
    tokenizer("gpt-2", tmp_path)
    (tmp_path / name).write_text("[")
    with pytest.raises(ValueError, match=f"{name} (cannot be read as a tokenizer|is not JSON) .*: download it again"):
        read_tokenizer(tmp_path)


def test_a_vocabulary_that_is_larger_than_the_models_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the vocabulary has 256 tokens: expected at most 50"):
        export_gguf(GPT(GPTConfig.tiny(vocabulary_size=50)), tmp_path / "a.gguf", vocabulary=byte_vocabulary())
    assert not list(tmp_path.iterdir())
