"""Tokenizers in the shapes of the published ones, trained here on the course's own text, and folders with a model."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2000
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_3 = """\
{{- bos_token }}
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today is " + strftime_now("%d %b %Y") + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- "<|start_header_id|>" + message["role"] + "<|end_header_id|>\\n\\n" }}
    {{- message["content"] | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate: user, assistant, user, and so on') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)


def _texts():
    """Prose and programs of this repository, and other scripts than Latin."""
    for path in [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "lib/threeloops/product").glob("*/*.py"))]:
        yield path.read_text()
    yield "Die Größe der Tabelle, déjà vu, Straße, łódź, naïve façade. " * 3
    yield "你好，世界。我们训练一个小模型。 Привет, мир! γειά σου 👋🏽 👩‍👩‍👧"


@cache
def byte_level() -> str:
    """A byte-level BPE of 2,000 tokens in Qwen2's shape, as JSON. (Special tokens included.)"""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(
            vocab_size=SIZE - 2, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        ),
    )
    made.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return made.to_str()


@cache
def byte_fallback() -> str:
    """A BPE over characters with bytes for the rest, in the shape of Llama 2's and Mistral's, as JSON."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = [AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=[*special, *byte_tokens], limit_alphabet=80, show_progress=False
    )
    lines = [line[:40] for text in _texts() for line in text.splitlines()[:200]]
    made.train_from_iterator(lines, trainer)
    described = json.loads(made.to_str())
    described["added_tokens"] = [each for each in described["added_tokens"] if each["id"] < 3]
    made = Tokenizer.from_str(json.dumps(described))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made.to_str()


@cache
def metaspace() -> str:
    """The same tokens with SentencePiece's spaces made by Metaspace, as JSON."""
    made = Tokenizer.from_str(byte_fallback())
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)])
    return made.to_str()


def write_tokenizer(folder, text, **settings):
    """The files of a tokenizer in a folder, as they are published."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text)
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(known | settings))
    return folder


def qwen2_folder(folder, *, end_tokens=(2,), seed=0, **settings):
    """A small Qwen2 of random weights and its tokenizer, all written by transformers. Returns its model."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=SIZE + 48, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=True,
        eos_token_id=list(end_tokens), bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    for layer in model.model.layers:  # they begin as zeros
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.bias, std=0.3)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level()), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = settings.get("chat_template", CHATML)
    tokenizer.save_pretrained(folder)
    return model
