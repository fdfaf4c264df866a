"""Grammars: what may come next, whatever the tokens are; and that a bad one is refused with the library's words."""

import json
import math
import re

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine
from threeloops.product.decode import BlockManager, ModelRunner, probabilities
from threeloops.product.decode.sampling import Adjuster
from threeloops.product.grammar import (
    GrammarError,
    Grammars,
    check_progress,
    grammar_of_choice,
    grammar_of_regex,
    grammar_of_schema,
)
from threeloops.product.request import Finish, Request, Sampling

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [b"", *BYTES[32:127], b"yes", b"no", b"ye", b'{"', b'":', b"12", b"true", "é".encode(), b"", b"no"]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
OF_ITSELF = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
MANY = {f"p{number}": {"type": "string"} for number in range(600)}
KINDS = [{"type": "object", "properties": {f"p{kind}x{n}": {"type": "null"} for n in range(10)}} for kind in range(100)]


def answer(tokens, grammar, seed=0, max_tokens=60, temperature=2.0):
    """What a model of random weights writes: (text, how it ended). Token 0 ends a text."""
    torch.manual_seed(seed)
    config = GPTConfig(len(tokens), layers=1, heads=1, kv_heads=1, width=8, mlp_width=8, max_sequence=128)
    runner = ModelRunner(GPT(config), 32, 4, grammars=Grammars(tokens, [0]))
    sampling = Sampling(max_tokens, temperature, seed=seed, stop=frozenset({0}), grammar=grammar)
    asked = Request("r", (1, 2), sampling)
    Engine(runner, BlockManager(32, 4)).run([asked])
    assert asked.finish is not Finish.ERROR, asked.error
    return b"".join(tokens[token] for token in asked.output if token).decode(), asked.finish


@pytest.mark.parametrize("tokens", [BYTES, PIECES], ids=["bytes", "pieces"])
@pytest.mark.parametrize("seed", [*range(8), 6275])
def test_an_answer_follows_its_grammar(tokens, seed):
    text, finish = answer(tokens, grammar_of_choice(["yes", "no", 'a "quoted"\\n']), seed)
    assert text in ("yes", "no", 'a "quoted"\\n') and finish is Finish.STOP
    text, finish = answer(tokens, grammar_of_regex("[0-9]{3}-(yes|no)*x"), seed)
    assert finish is Finish.LENGTH or re.fullmatch("[0-9]{3}-(yes|no)*x", text)
    text, finish = answer(tokens, grammar_of_schema(PERSON), seed)
    found = json.loads(text)
    assert finish is Finish.STOP and list(found) == ["name", "age"] and len(found["name"]) <= 4
    assert 0 <= found["age"] <= 99 and text.startswith('{"name":"') and ',"age":' in text, "without white space"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_mask_leaves_the_distribution_of_what_is_allowed(temperature):
    """At each place of each text: the model's probabilities of the bytes that continue some text, divided by their sum.

    The bytes are found here without llguidance. After a whole text, its end is allowed."""
    texts = [b"int", b"str", b"bool", b"None", b"bytes", b"byte"]
    grammars = Grammars(BYTES, [0])
    sampling = Sampling(8, temperature, grammar=grammar_of_choice([text.decode() for text in texts]))
    generator = torch.Generator().manual_seed(0)
    for text in texts:
        asked = Request("r", (1, 2), sampling)
        adjuster = Adjuster(grammars)
        for place in range(len(text) + 1):
            logits = 3 * torch.randn(1, 256, generator=generator, dtype=torch.float64)
            adjusted, failures = adjuster.adjusted(logits, {0: asked})
            begun = text[:place]
            allowed = {other[place] for other in texts if other.startswith(begun) and len(other) > place}
            allowed |= {0} if begun in texts else set()
            chances = [
                math.exp(float(logit) / temperature) if n in allowed else 0.0 for n, logit in enumerate(logits[0])
            ]
            expected = torch.tensor(chances, dtype=torch.float64) / sum(chances)
            assert not failures
            torch.testing.assert_close(probabilities(adjusted, [sampling])[0], expected, rtol=1e-12, atol=0)
            asked.output += text[place : place + 1]


def test_the_length_may_end_it_in_the_middle():
    text, finish = answer(BYTES, grammar_of_regex("[ab]{50}"), max_tokens=7)
    assert finish is Finish.LENGTH and re.fullmatch("[ab]{7}", text)


def test_at_temperature_zero_the_likeliest_allowed_token_is_taken():
    assert answer(BYTES, grammar_of_choice(["q"]), temperature=0.0) == ("q", Finish.STOP)


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (lambda: grammar_of_schema({"type": "strng"}), "Invalid type: strng"),
        (lambda: grammar_of_schema({"type": "array", "uniqueItems": True}), "Unimplemented keys"),
        (lambda: grammar_of_regex("(a"), "unclosed group"),
        (lambda: grammar_of_regex("a(?=b)"), "look-ahead"),
        (lambda: grammar_of_schema(ENDLESS), "Too many items"),
        (lambda: grammar_of_schema(OF_ITSELF), "no token can come next"),
        (lambda: grammar_of_schema({"type": "object", "properties": MANY}), "items; max is 2000"),
        (lambda: grammar_of_schema({"anyOf": KINDS}), "items; max is 2000"),
        (lambda: grammar_of_choice(["a\0b"]), "no token can come next"),
    ],
    ids=[
        "a type",
        "a keyword",
        "a group",
        "look-ahead",
        "an endless text",
        "a definition of itself",
        "many properties",
        "many kinds",
        "the byte that ends a text",
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_in_the_librarys_words(grammar, told):
    with pytest.raises(ValueError, match=told) as refused:
        Grammars(BYTES, [0]).matcher(grammar())
    assert "\n" not in str(refused.value), "the state of the parser is not shown"


@pytest.mark.parametrize(
    ("grammar", "size"),
    [
        (lambda size: grammar_of_schema({"const": "x" * (size - len('{"const": ""}'))}), 65_536),
        (lambda size: grammar_of_regex("x" * size), 65_536),
        (lambda size: grammar_of_choice(["x" * (size - 2)]), 65_536),
    ],
    ids=["a schema", "an expression", "a choice"],
)
def test_a_grammar_that_would_keep_everybody_waiting_is_refused_by_its_size(grammar, size):
    grammar(size)
    with pytest.raises(ValueError, match=f"its text has {size + 1} bytes: expected at most {size}"):
        grammar(size + 1)


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "integer", "minimum": BIG}, f"minimum = {BIG}: expected a number from -2"),
        ({"type": "object", "properties": {"enum": {"exclusiveMaximum": -BIG}}}, "exclusiveMaximum = -9"),
        ({"type": "array", "items": {"anyOf": [{"maximum": BIG}]}}, "maximum"),
        ({"type": "integer", "maximum": 10**400}, "maximum = 1000"),
    ],
    ids=["a number", "in an object", "in one of several", "of hundreds of digits"],
)
def test_a_bound_that_would_be_rounded_is_refused(schema, told):
    with pytest.raises(ValueError, match=told):
        grammar_of_schema(schema)


def test_what_only_looks_like_a_bound_is_none():
    number = {"type": "integer", "minimum": -(2**53), "maximum": 2**53}
    for schema in (number, {"const": {"minimum": BIG}}, {"type": "object", "properties": {"minimum": number}}):
        Grammars(BYTES, [0]).matcher(grammar_of_schema(schema))


def test_the_backtrace_of_a_panic_is_not_shown():
    class Panicked:
        def is_error(self):
            return True

        def get_error(self):
            return "panic: index out of bounds\nBacktrace:\n  0: parser::earley\n<state>"

    with pytest.raises(GrammarError, match="^llguidance cannot process it$"):
        check_progress(Panicked())


def test_a_schema_of_any_depth_is_refused_or_followed():
    schema = {"type": "string"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="nests objects too deeply"):
        grammar_of_schema(schema)


def test_two_requests_of_one_grammar_do_not_share_their_places():
    grammars, grammar = Grammars(BYTES, [0]), grammar_of_choice(["ab"])
    first, second = grammars.matcher(grammar), grammars.matcher(grammar)
    assert first.consume_tokens([97, 98]) and not second.is_accepting() and first.is_accepting()
