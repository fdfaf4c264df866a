"""The benchmark beside other engines: what it asks of every party, and what it says where one is missing."""

import multiprocessing

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig

from benchmarks import engines_peers
from benchmarks.engines import where_a_step_goes
from benchmarks.engines_peers import CTRANSLATE2, LLAMA_CPP, OURS, TRANSFORMERS, Party, peers
from benchmarks.progress import finished
from benchmarks.result import Unmeasured

PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return (
        GPT(GPTConfig.tiny(vocabulary_size=320, max_sequence=256, tied_embeddings=False)).eval().requires_grad_(False)
    )


def test_without_other_engines_ours_runs_and_each_missing_one_is_named(model, monkeypatch):
    monkeypatch.setattr(engines_peers, "why_absent", lambda package: f"{package} is not installed")
    with peers(model, 1, 2) as (parties, missing):
        tokens, seconds = parties[OURS].generate(PROMPTS, 5)
        assert [len(answer) for answer in tokens] == [5, 5]
        assert seconds > 0
        assert list(parties) == [OURS]
    assert [sentence.partition(":")[0] for sentence in missing] == [TRANSFORMERS, CTRANSLATE2, LLAMA_CPP]


def test_an_engine_that_fails_says_why_and_ends_its_process(model, tmp_path):
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(Unmeasured, match="RuntimeError: Error"):
        Party(OURS, tmp_path / "weights.pt", model.config, 1, 2)
    assert not multiprocessing.active_children()


def test_no_process_is_left_after_a_comparison(model, monkeypatch):
    monkeypatch.setattr(engines_peers, "why_absent", lambda package: f"{package} is not installed")
    with peers(model, 1, 2):
        assert len(multiprocessing.active_children()) == 1
    assert not multiprocessing.active_children()


@pytest.mark.slow  # the peers are in an environment of their own, which CI does not make
@pytest.mark.parametrize("name", [TRANSFORMERS, CTRANSLATE2, LLAMA_CPP])
def test_a_peer_has_our_weights_and_gives_our_tokens(model, name):
    with peers(model, 1, 2) as (parties, missing):
        if name not in parties:
            pytest.skip(next(sentence for sentence in missing if sentence.startswith(name)))
        assert parties[name].generate(PROMPTS, 5)[0] == parties[OURS].generate(PROMPTS, 5)[0]


def test_the_parts_of_a_step_add_up_to_the_step(model):
    parts = where_a_step_goes(model, 1, 2, steps=3)
    shares = [
        parts[f"share of {part}"]
        for part in ("the scheduler", "preparing and choosing", "matrix products", "the rest of the model")
    ]
    assert parts["seconds of a step"] > 0 and parts["operators"] > 20
    assert parts["share of matrix products"] > 0
    assert sum(shares) == pytest.approx(1)


def test_a_finished_measurement_is_a_line_on_stderr(capsys):
    finished("throughput, round 1 of 5")
    out, err = capsys.readouterr()
    assert not out and err.endswith(" s  throughput, round 1 of 5\n")
