"""The glossary: every term is defined once, belongs to a lab, and can be asked for."""

import json
from importlib import resources

import pytest
from threeloops.lab import labs, term
from threeloops.lab.course.glossary import glossary, page


def test_every_term_stands_once_with_a_sentence_and_a_lab():
    entries = json.loads(resources.files("threeloops.lab.course").joinpath("glossary.json").read_text())
    assert len(glossary()) == len(entries)
    for each in glossary().values():
        assert each.meaning[0].isupper() or each.meaning[0].isdigit()
        assert each.meaning.endswith(".") and len(each.meaning) < 250
        assert each.lab in {lab.number for lab in labs()}


def test_a_term_is_shown_whatever_its_case(capsys):
    term(" Warp")
    assert capsys.readouterr().out == "warp: 32 threads that execute the same instruction together. (lab 02)\n"


def test_an_unknown_term_names_what_is_near():
    with pytest.raises(ValueError, match="did you mean .*warp"):
        term("wrap")


def test_the_page_lists_all_in_order():
    lines = [line for line in page().splitlines() if line.startswith("**")]
    names = [line.split("**")[1] for line in lines]
    assert names == sorted(names, key=str.lower) and len(names) == len(glossary())
    assert "*Lab 02, The memory hierarchy.*" in page()
