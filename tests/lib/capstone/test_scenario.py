"""Scenarios and prices from TOML: what is read, and what every wrong input is told."""

from dataclasses import replace

import pytest
from threeloops.capstone import ScenarioError, evaluate, examples, read_prices, read_scenario, scenario_from
from threeloops.hardware.accelerators import accelerators

GOOD = """
title = "awkward"
[model]
preset = "llama-3-8b"
[cluster]
accelerators = ["h100", "A100"]
gpus = 3
[training]
tokens = 1_000_000_000
batch = 7
sequence = 1000
deadline_days = 0.5
"""


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as error:
        scenario_from(text.encode(), "mine.toml")
    return str(error.value)


def test_a_file_and_an_example_are_read_alike(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    scenario = read_scenario(path)
    assert (scenario.cluster.nodes, scenario.training.tokens, scenario.serving) == (1, 1e9, None)
    assert dict(scenario.inputs())["training.batch"] == 7
    assert "model.layers" not in dict(scenario.inputs())
    assert [read_scenario(name).title for name in examples()]


MIXTURE = """layers = 2
width = 64
heads = 4
kv_heads = 2
hidden = 96
vocabulary = 100
experts = 4
experts_per_token = 2
"""


def test_a_mixture_of_experts_is_trained_but_not_served():
    mixture = GOOD.replace('preset = "llama-3-8b"\n', MIXTURE)
    model = scenario_from(mixture.encode(), "mine.toml").trained
    assert (model.experts, model.experts_per_token, model.adapter_rank) == (4, 2, 0)
    serving = "[serving]\npeak_requests_per_second = 1.0\nprompt_tokens = 8\noutput_tokens = 8\nttft_seconds = 1.0\n"
    assert "[serving] of a model with experts" in refused(f"{mixture}{serving}tpot_seconds = 1.0\n")
    assert "expected 1 to experts = 4" in refused(mixture.replace("experts_per_token = 2", "experts_per_token = 5"))


def test_adapters_belong_to_the_trained_model_only():
    scenario = scenario_from(
        GOOD.replace("batch = 7", "batch = 7\nlora_rank = 16\nbase_bits = 4").encode(), "mine.toml"
    )
    assert (scenario.trained.adapter_rank, scenario.trained.frozen_bits) == (16, 4.127)
    assert scenario.model.transformer.adapter_rank == 0


def test_a_file_of_an_examples_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7b_finetuning").write_text(GOOD)
    assert read_scenario("7b_finetuning").title == "awkward"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gpus = 3", "gpuz = 3", "cluster.gpuz: unknown key; did you mean 'gpus'?"),
        ("[training]", "[trainig]", "trainig: unknown key; did you mean 'training'?"),
        ("gpus = 3", "gpus = 0", "cluster.gpus = 0: expected greater than or equal to 1"),
        ("gpus = 3", "gpus = 2.5", "cluster.gpus = 2.5: expected a valid integer"),
        ("gpus = 3", 'gpus = "3"', "cluster.gpus = '3': expected a valid integer"),
        ("gpus = 3", "gpus = true", "cluster.gpus = True: expected a valid integer"),
        ("gpus = 3", "gpus = 12", "gpus = 12: expected a multiple of gpus_per_node = 8"),
        ("batch = 7", "batch = -7", "training.batch = -7"),
        (
            "batch = 7",
            "batch = 7\nbase_bits = 4",
            "only frozen weights can have fewer than 16 bits; give lora_rank too",
        ),
        ("batch = 7", "batch = 7\nlora_rank = 0", "training.lora_rank = 0: expected greater than or equal to 1"),
        ("batch = 7", 'batch = 7\nprecision = "fp4"', "training.precision = 'fp4'"),
        ('preset = "llama-3-8b"', 'preset = "llama-3-8b"\nexperts = 8', "has all sizes: leave out experts"),
        ("tokens = 1_000_000_000", "tokens = nan", "training.tokens = nan: expected a finite number"),
        ("tokens = 1_000_000_000", "tokens = inf", "training.tokens = inf: expected a finite number"),
        ("tokens = 1_000_000_000", "tokens = -1", "training.tokens = -1: expected greater than 0"),
        ("tokens = 1_000_000_000", "tokens = 2026-01-01", "training.tokens = '2026-01-01': expected a valid number"),
        ("tokens = 1_000_000_000\n", "", "training.tokens: this key is missing; add it"),
        ("[model]\npreset", "[training.model]\npreset", "unknown key"),
        ('title = "awkward"', "", "title: this key is missing"),
        ('preset = "llama-3-8b"', 'preset = "llama-9"', "model.preset = 'llama-9': expected 'llama-2-7b'"),
        ('preset = "llama-3-8b"', "layers = 4", "width, heads, kv_heads, hidden, vocabulary missing"),
        ('preset = "llama-3-8b"', 'preset = "llama-3-8b"\nlayers = 4', "leave out layers, or the preset"),
        ('"h100"', '"h1000"', "no accelerator is called 'h1000': did you mean H100"),
        ('["h100", "A100"]', "[]", "cluster.accelerators = []"),
        ('["h100", "A100"]', '"h100"', "cluster.accelerators = 'h100'"),
        ("[training]", "[serving]", "serving.tokens: unknown key"),
        ("deadline_days = 0.5", "deadline_days = ", "not TOML"),
        (
            "deadline_days = 0.5",
            "deadline_days = 0.5\n[budget]\ntotal = 0",
            "budget.total = 0: expected greater than 0",
        ),
        ("deadline_days = 0.5", "deadline_days = 0.5\n[prices]\nutilisation = 1.5", "prices.utilisation = 1.5"),
    ],
)
def test_a_wrong_key_is_named(old, new, words):
    assert old in GOOD
    message = refused(GOOD.replace(old, new))
    assert message.startswith("mine.toml: ") and words in message, message


def test_sizes_that_make_no_transformer_are_refused():
    sizes = "layers = 2\nwidth = 100\nheads = 3\nkv_heads = 1\nhidden = 8\nvocabulary = 9"
    assert "width = 100, heads = 3" in refused(GOOD.replace('preset = "llama-3-8b"', sizes))


def test_a_scenario_asks_for_something():
    assert "neither [training] nor [serving]" in refused(GOOD.partition("[training]")[0])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(
        ScenarioError, match="no such file, and no example of this name; did you mean .*70b_pretraining"
    ):
        read_scenario("70b_pretrain")
    with pytest.raises(ScenarioError, match="Is a directory; expected a readable TOML file"):
        read_scenario(tmp_path)
    with pytest.raises(ScenarioError, match="byte 0 is not UTF-8"):
        scenario_from(b"\xff", "x.toml")


def test_every_price_has_a_source_and_a_date():
    rows = read_prices().price
    for row in rows:
        assert row.source and row.date[:2] == "20" and row.value > 0, row
        assert not row.accelerator or row.accelerator in accelerators()
        assert (row.level == "estimate") == bool(row.note)
    assert len({(row.item, row.accelerator) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": "-1"}, "price.0.value = -1: expected greater than 0"),
        ({"item": '"rent"'}, "price.0.item = 'rent': expected 'cloud'"),
        ({"accelerator": '""'}, "expected a name of an accelerator"),
        ({"level": '"estimate"'}, "expected a note that says how it was made"),
        ({"sorce": '"x"'}, "price.0.sorce: unknown key; did you mean 'source'?"),
        ({"date": '""'}, "price.0.date = ''"),
    ],
)
def test_a_wrong_price_is_named(tmp_path, change, words):
    row = {
        "item": '"cloud"', "accelerator": '"H100"', "value": "1.5", "unit": '"USD/GPU-hour"', "level": '"published"',
        "source": '"a list"', "date": '"2026-01-01"',
    }  # fmt: skip
    path = tmp_path / "prices.toml"
    path.write_text("[[price]]\n" + "\n".join(f"{key} = {value}" for key, value in row.items()))
    assert read_prices(path).find("cloud", "H100 SXM").value == 1.5
    path.write_text("[[price]]\n" + "\n".join(f"{key} = {value}" for key, value in (row | change).items()))
    with pytest.raises(ScenarioError) as error:
        read_prices(path)
    assert words in str(error.value)


def test_the_last_of_two_prices_counts():
    prices = read_prices()
    h100 = prices.find("cloud", "H100")
    more = replace(prices, price=(*prices.price, replace(h100, value=1.0)))
    assert more.find("cloud", "H100").value == 1.0
    assert prices.with_cloud(2.0).find("cloud", "H100").value == 2 * h100.value
    assert prices.with_cloud(2.0).find("electricity").value == prices.find("electricity").value


@pytest.mark.parametrize(
    ("formula", "value"), [("a + b * 2", 8.0), ("(a + b) / b", 5 / 3), ("a - b - 1", -2.0), ("1e3", 1000.0)]
)
def test_formulas_are_arithmetic(formula, value):
    assert evaluate(formula, {"a": 2.0, "b": 3.0}) == value


@pytest.mark.parametrize("formula", ["c", "a ** 2", "a(1)", "a if a else 1", "True", "-a", "'x'", "a +", "a.b"])
def test_formulas_are_nothing_else(formula):
    with pytest.raises(ValueError, match="expected arithmetic|is not a number"):
        evaluate(formula, {"a": 2.0})
