"""Every variant of architecture, given to everything that takes a model, is computed or refused by name."""

import pytest
import table
import torch
from consumers import CONSUMERS
from model_variants import VARIANTS


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_consumer_computes_a_variant_or_names_what_it_does_not_have(consumer, variant):
    found = CONSUMERS[consumer].check(tuple(VARIANTS))[variant]
    if number := table.REFUSED.get((consumer, variant)):
        assert isinstance(found, str) and table.words(number) in found, f"expected a refusal, found {found}"
    else:
        assert isinstance(found, float) and found <= CONSUMERS[consumer].within, found


def test_the_page_says_what_the_tests_say():
    assert table.PAGE.read_text(encoding="utf-8") == table.written(), "run python tests/variants/table.py"
