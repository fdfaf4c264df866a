"""Chat templates: the prompt of a conversation is what transformers makes of it, and templates reach nothing else."""

import json
import time

import pytest
from threeloops.product.text import ByteTokenizer, chat_template, load_tokenizer
from trained_tokenizer import CHATML, LLAMA_3, MISTRAL, byte_level, write_tokenizer
from transformers import PreTrainedTokenizerFast

NAMED = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
TURN = [{"role": "user", "content": "Hello\n  <b>&</b> “you” "}]
TURNS = [*TURN, {"role": "assistant", "content": "  Yes? "}, {"role": "user", "content": "<|im_end|>你好 👋🏽"}]
SYSTEM = [{"role": "system", "content": " Be brief. "}, *TURNS]

EVERYTHING = """
{%- set count = namespace(turns=0) %}
{%- for message in messages %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
    {%- set count.turns = count.turns + 1 %}
    {{ {"who": message.role, "said": message.content} | tojson }}
    {%- generation %}{{ message.content | tojson(indent=1) }}{% endgeneration %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
{%- endfor %}
{{ count.turns }} {{ tools is none }} {{ bos_token }} {{ unk_token is defined }} {{ strftime_now("%Y") }}
"""


def both(folder, **settings):
    write_tokenizer(folder, byte_level(), **NAMED, **settings)
    return load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)


def prompt_of(tokenizer, messages):
    return list(tokenizer.encode_chat(messages))


@pytest.mark.parametrize("messages", [TURN, TURNS, SYSTEM], ids=["turn", "turns", "system"])
@pytest.mark.parametrize("template", [CHATML, LLAMA_3, MISTRAL, EVERYTHING], ids=["chatml", "llama3", "mistral", "all"])
def test_a_conversation_has_the_tokens_that_transformers_gives_it(tmp_path, template, messages):
    ours, theirs = both(tmp_path, chat_template=template)
    if template == MISTRAL and messages == SYSTEM:
        with pytest.raises(ValueError, match="template failed on this conversation: Roles must alternate"):
            ours.encode_chat(messages)
        return
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt_of(ours, messages) == theirs.encode(wanted, add_special_tokens=False)


@pytest.mark.parametrize(
    "template",
    [
        "{% for _ in range(90000) %}{% for _ in range(90000) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
        "{{ messages[0].content * 50000 }}",
    ],
    ids=["many pieces", "one piece"],
)
def test_a_text_without_bound_is_refused(tmp_path, template):
    ours, _ = both(tmp_path, chat_template=template)
    own = len("user") + len(TURN[0]["content"])
    most = 1_000_000 + 100 + 10 * own
    with pytest.raises(ValueError, match=f"it wrote more than {most} characters for {own} characters of messages"):
        ours.encode_chat(TURN)


LONG = "range(90000)"


@pytest.mark.parametrize(
    "template",
    [
        f"{{% for _ in {LONG} %}}{{% for _ in {LONG} %}}{{% endfor %}}{{% endfor %}}",
        f"{{% for _ in {LONG} %}}{{% for _ in {LONG} if false %}}{{% endfor %}}{{% endfor %}}",
        "{% for _ in messages[0].content * 90000 %}{% for _ in messages[0].content * 90000 %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        "{% for _ in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    ],
    ids=["a loop in a loop", "a condition", "messages", "a macro", "a recursive loop"],
)
def test_a_template_that_takes_for_ever_without_a_word_is_ended(tmp_path, monkeypatch, template):
    monkeypatch.setattr(chat_template, "_SECONDS", 0.2)
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level(), chat_template=template)))
    began = time.thread_time()
    with pytest.raises(ValueError, match=r"failed on this conversation: it took more than 0\.2 s of processor time"):
        tokenizer.encode_chat(TURN)
    assert time.thread_time() - began < 10


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("(10 ** 200 * 10 ** 200) > 0", "failed on this conversation: int too large to convert to float"),
        ("('ab' * 10 ** 9) | length", "\\* would repeat 2 elements 1000000000 times: expected at most 10000000 in all"),
        ("(10 ** 9 * [1]) | length", "\\* would repeat 1 elements 1000000000 times"),
        ("10 ** 9999999999", "failed on this conversation: .*Numerical result out of range"),
    ],
)
def test_a_single_step_that_would_take_for_ever_is_refused(tmp_path, expression, told):
    template = f"{{{{ {expression} }}}}"
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level(), chat_template=template)))
    with pytest.raises(ValueError, match=told):
        tokenizer.encode_chat(TURN)


def test_the_time_of_one_conversation_is_not_that_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "_SECONDS", 0.2)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level(), chat_template=template)))
    tokenizer.encode_chat(TURN)
    began = time.thread_time()
    while time.thread_time() - began < 0.3:
        pass
    tokenizer.encode_chat(TURN)


def test_loops_conditions_macros_and_arithmetic_give_what_transformers_renders(tmp_path):
    template = (
        "{% macro said(name) %}[{{ caller() }} {{ name }}]{% endmacro %}"
        "{% for message in messages if message.role != 'system' %}"
        "{{ loop.index }}/{{ loop.length }}{{ '!' if loop.last }}{{ '=' * 2 ** 2 }}"
        "{% call said(message.role) %}{{ message.content }}{% endcall %}"
        "{% else %}nobody{% endfor %}"
        "{% for _ in [] %}{% else %}none{% endfor %}"
    )
    ours, theirs = both(tmp_path, chat_template=template)
    assert prompt_of(ours, TURNS) == theirs.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]


def test_a_template_may_lie_in_a_file_of_its_own_which_comes_first(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    ours, theirs = both(tmp_path, chat_template="not this")
    assert prompt_of(ours, TURNS) == theirs.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]


def test_of_several_templates_the_default_is_taken(tmp_path):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": CHATML}]
    ours, theirs = both(tmp_path / "both", chat_template=several)
    assert prompt_of(ours, TURNS) == theirs.apply_chat_template(TURNS, add_generation_prompt=True)["input_ids"]
    write_tokenizer(tmp_path / "one", byte_level(), chat_template=several[:1])
    with pytest.raises(ValueError, match="chat_template has tool_use: expected one named 'default'"):
        load_tokenizer(str(tmp_path / "one"))


def test_a_folder_without_a_template_refuses_to_chat(tmp_path):
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level())))
    with pytest.raises(ValueError, match=f"has no chat template in {tmp_path}: send a prompt to /v1/completions"):
        tokenizer.encode_chat(TURN)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ messages[0].missing.field }}", "failed on this conversation: .*has no attribute 'missing'"),
        ("{{ messages.append(1) }}", "failed on this conversation: .*append.*unsafe"),
        ("{{ ''.__class__.__mro__ }}", "failed on this conversation: access to attribute '__class__'"),
        ("{{ messages + 1 }}", "failed on this conversation"),
        ("{% if not messages %}x{% endif %}", "gives an empty text for this conversation"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_sentence(tmp_path, template, sentence):
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level(), chat_template=template)))
    with pytest.raises(ValueError, match=sentence):
        tokenizer.encode_chat(TURN)


def test_a_message_that_looks_like_json_or_html_reaches_the_model_as_it_is(tmp_path):
    tokenizer, _ = both(tmp_path, chat_template="{{ messages[0] | tojson }}")
    decoder = tokenizer.decoder()
    text = decoder.push(tokenizer.encode_chat([{"role": "user", "content": "<a href='é'>&"}])) + decoder.end()
    assert json.loads(text) == {"role": "user", "content": "<a href='é'>&"} and "<a href='é'>&" in text


def test_a_model_of_bytes_has_turns_that_begin_with_who_speaks():
    assert bytes(ByteTokenizer().encode_chat(TURN)).decode() == f"user: {TURN[0]['content']}\nassistant: "
