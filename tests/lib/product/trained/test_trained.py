"""Models trained by recipe: the text, the learning curve, interruptions, and where the results are found."""

import dataclasses
import json

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.trained import RECIPES, Recipe, decode, encode, held_out_loss, standard_library, train, trained
from threeloops.product.trained import models as found_models
from threeloops.product.trained.models import export, fingerprint, folder_of, from_checkpoints

SMALL = Recipe(
    GPTConfig.tiny(layers=1, width=32, mlp_width=64, max_sequence=32),
    steps=12, batch=4, sequence=16, rate=1e-2, warm_up=4, every=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def text():
    sentence = torch.tensor(encode("for place, name in enumerate(names):\n    print(place, name)\n"), dtype=torch.uint8)
    return sentence.repeat(40), sentence.repeat(4)


def weights(folder, recipe):
    from threeloops.training.checkpoint import Checkpointer, LocalStore

    model = GPT(recipe.config)
    template = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}
    Checkpointer(LocalStore(folder / "checkpoints")).load(template, strict=False)
    return model


def library(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_the_text_is_all_modules_without_tests_and_some_are_held_out(tmp_path):
    files = {f"module{i}.py": b"a = %d\n" % i for i in range(60)}
    others = {"test/x.py": b"!", "pkg/tests/y.py": b"!", "site-packages/z.py": b"!", "notes.txt": b"!"}
    train_text, held_out = standard_library(library(tmp_path, {**files, **others}))
    joined = [set(bytes(part.tolist()).split(b"\0")) - {b""} for part in (train_text, held_out)]
    assert joined[0] | joined[1] == set(files.values()) and not joined[0] & joined[1]
    assert 1 <= len(joined[1]) <= 12


def test_a_file_is_held_out_by_its_name_alone(tmp_path):
    def held_out(folder, count):
        return set(
            bytes(standard_library(library(folder, {f"m{i}.py": b"%d" % i for i in range(count)}))[1]).split(b"\0")
        )

    few, many = held_out(tmp_path / "few", 60), held_out(tmp_path / "many", 90)
    assert few <= many


def test_the_standard_library_of_this_python_is_there():
    train_text, held_out = standard_library()
    assert 5e6 < len(train_text) < 5e7 and 0.01 < len(held_out) / len(train_text) < 0.2
    assert train_text.dtype == torch.uint8 and train_text[0] == 0


def test_a_python_without_sources_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the standard library's sources, found 0 files"):
        standard_library(tmp_path)


def test_bytes_are_tokens():
    assert encode("é(") == [0xC3, 0xA9, ord("(")] and decode(encode("é(")) == "é("
    assert decode([ord("a"), 0xC3]) == "a�"


def test_the_loss_falls_and_every_row_of_the_curve_is_kept(tmp_path, text):
    recipe = dataclasses.replace(SMALL, steps=60, every=20)
    seen = []
    curve = train(recipe, text, tmp_path, report=seen.append)
    assert [row.step for row in curve] == [20, 40, 60] and seen == curve
    assert curve[-1].held_out < 0.7 * curve[0].held_out < 5.5
    assert [json.loads(line)["step"] for line in (tmp_path / "curve.jsonl").read_text().splitlines()] == [20, 40, 60]


def test_the_rate_warms_up_and_falls_to_a_tenth(tmp_path, text):
    rates = [row.rate for row in train(dataclasses.replace(SMALL, every=1), text, tmp_path)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01]) and max(rates) == pytest.approx(0.01)
    assert rates[4] == pytest.approx(0.01) and rates[8] == pytest.approx(0.0055)
    assert rates[4:] == sorted(rates[4:], reverse=True) and 0.001 < rates[-1] < 0.0015


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path, text):
    class Stop(Exception):
        pass

    def stop(row):
        if row.step == 8:
            raise Stop

    train(SMALL, text, tmp_path / "whole")
    with pytest.raises(Stop):
        train(SMALL, text, tmp_path / "parts", report=stop)
    curve = train(SMALL, text, tmp_path / "parts")
    assert [row.step for row in curve] == [4, 8, 12]
    assert [row.seconds for row in curve] == sorted(row.seconds for row in curve)
    whole, parts = weights(tmp_path / "whole", SMALL), weights(tmp_path / "parts", SMALL)
    for (name, weight), other in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        assert torch.equal(weight, other), name


def test_a_training_that_has_ended_is_not_repeated(tmp_path, text):
    curve = train(SMALL, text, tmp_path)
    assert train(SMALL, text, tmp_path, report=lambda row: pytest.fail("a step was made")) == curve


def test_text_shorter_than_a_sequence_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="10 and .* bytes of text: expected more than a sequence, 16"):
        train(SMALL, (text[0][:10], text[1]), tmp_path)


def test_held_out_loss_is_the_mean_over_windows(text):
    torch.manual_seed(0)
    model = GPT(SMALL.config).double()
    tokens = text[0][: 16 * 19 + 5].long()
    losses = []
    for start in range(0, 16 * 19, 16):
        logits = model(tokens[None, start : start + 16])[0]
        chances = logits.softmax(-1)[range(16), tokens[start + 1 : start + 17]]
        losses.append(-chances.log().mean())
    assert held_out_loss(model, text[0][: 16 * 19 + 5], 16) == pytest.approx(
        torch.stack(losses).mean().item(), rel=1e-12
    )


def test_the_fingerprint_changes_with_recipe_text_and_code(text, monkeypatch):
    base = fingerprint(SMALL, text[0])
    assert base == fingerprint(SMALL, text[0].clone()) and len(base) == 16
    changed = text[0].clone()
    changed[-1] += 1
    others = {fingerprint(dataclasses.replace(SMALL, rate=2e-2), text[0]), fingerprint(SMALL, changed)}
    monkeypatch.setattr(found_models.inspect, "getsource", lambda module: "other code")
    others.add(fingerprint(SMALL, text[0]))
    assert len(others | {base}) == 4


def test_a_model_that_was_not_trained_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("THREELOOPS_MODELS", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"'model' was trained for 0 of \d+ steps; `python -m threeloops.product.trained`"
    ):
        trained("model")
    folder = folder_of("model")
    assert folder.parent == tmp_path
    folder.mkdir()
    row = {"step": 100, "train": 1.0, "held_out": 1.0, "rate": 1.0, "seconds": 1.0}
    (folder / "curve.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(FileNotFoundError, match="was trained for 100 of"):
        trained("model")


def test_a_trained_model_is_found(tmp_path, text, monkeypatch):
    monkeypatch.setenv("THREELOOPS_MODELS", str(tmp_path))
    monkeypatch.setitem(found_models.RECIPES, "small", SMALL)
    train(SMALL, text, folder_of("small"))
    model = trained("small")
    assert not model.training
    for (name, weight), other in zip(
        weights(folder_of("small"), SMALL).state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, other), name


def test_what_was_trained_here_is_not_taken_for_what_came_with_the_library(tmp_path, text, monkeypatch):
    monkeypatch.setenv("THREELOOPS_MODELS", str(tmp_path))
    monkeypatch.setitem(found_models.RECIPES, "small", SMALL)
    monkeypatch.setattr(found_models, "_SHIPPED", tmp_path)
    train(SMALL, text, folder_of("small"))
    torch.manual_seed(1)
    shipped = GPT(SMALL.config)
    export(shipped, tmp_path / "small.safetensors", {})
    assert torch.equal(trained("small").embedding.weight, shipped.embedding.weight.half().float())
    made = weights(folder_of("small"), SMALL).embedding.weight
    assert torch.equal(from_checkpoints("small").embedding.weight, made)


def test_an_unknown_model_is_named():
    with pytest.raises(KeyError, match="no model 'large': expected one of model, draft, tiny"):
        trained("large")


@pytest.mark.parametrize("name", sorted(path.stem for path in found_models._SHIPPED.glob("*.safetensors")))
def test_a_model_that_comes_with_the_library_is_as_good_as_it_says(name):
    model, held_out = trained(name), standard_library()[1]
    assert model.config == RECIPES[name].config
    from safetensors import safe_open

    with safe_open(found_models._SHIPPED / f"{name}.safetensors", "pt") as file:
        stated = float(file.metadata()["loss"])
    assert held_out_loss(model, held_out[: 64 * RECIPES[name].sequence], RECIPES[name].sequence) == pytest.approx(
        stated, rel=0.1
    )


def test_a_model_exported_in_float16_is_nearly_the_same(tmp_path):
    torch.manual_seed(1)
    model = GPT(SMALL.config)
    export(model, tmp_path / "m.safetensors", {"loss": "1"})
    again = found_models._read(tmp_path / "m.safetensors")
    assert again.config == model.config
    tokens = torch.randint(256, (1, 20))
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-2, atol=1e-2)
