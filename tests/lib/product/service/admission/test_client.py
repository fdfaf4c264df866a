import math

import pytest
from threeloops.product.service.admission import ClientLimits


@pytest.mark.parametrize(
    "limits",
    [
        {"requests_per_second": -1},
        {"requests_per_second": math.nan},
        {"request_burst": 0.5},
        {"token_burst": math.inf},
        {"tokens_per_second": "5"},
        {"concurrent": 0},
        {"concurrent": True},
    ],
    ids=str,
)
def test_a_limit_out_of_range_is_refused_by_name(limits):
    with pytest.raises(ValueError, match=f"{next(iter(limits))} = "):
        ClientLimits(**limits)


def test_without_numbers_there_is_no_limit():
    assert ClientLimits() == ClientLimits(requests_per_second=math.inf, tokens_per_second=math.inf, concurrent=math.inf)
