"""Small fleets that tests of the fleet share: engines with round numbers, and records that are checked as a whole."""

import math

from threeloops.product.fleet import FleetRun, SharedModel
from threeloops.product.loadgen import Arrival

STEADY = SharedModel((0.01,) * 8, prompt_seconds=0.001)
"""8 seats, 10 ms a step however many run, 1 ms a token of a prompt: 100 tokens after 10 of prompt take 1.01 s alone."""


def every(seconds: float, requests: int, *, prompt: int = 10, output: int = 100, start: float = 0.0) -> list[Arrival]:
    """A request every so many seconds."""
    return [Arrival(start + seconds * number, ((number, prompt),), output) for number in range(requests)]


def check_record(run: FleetRun, arrivals: list[Arrival]) -> None:
    """No request is lost without an error or answered twice, moments are in order, and what is paid for adds up."""
    assert [each.arrival for each in run.requests] == sorted(each.at for each in arrivals)
    assert sum(each.max_tokens for each in run.requests) == sum(each.max_tokens for each in arrivals)
    lives = {life.replica: life for life in run.lives}
    assert len(lives) == len(run.lives)
    for each in run.requests:
        assert each.answered != bool(each.error), each
        assert each.arrival <= each.end <= run.seconds
        if each.answered:
            assert each.output_tokens == each.max_tokens and each.tries >= 1
            assert each.arrival < each.first_token <= each.end
            life = lives[each.replica]
            assert life.ready <= each.first_token and not each.end > life.gone, (
                "answered by a replica that is not there"
            )
        else:
            assert each.output_tokens == 0
    for life in run.lives:
        assert not life.ready < life.asked and not life.drains < life.asked and not life.gone < life.asked
        end = run.seconds if math.isnan(life.gone) else life.gone
        assert 0 <= life.busy <= end - life.asked + 1e-6
        assert [event.at for event in life.events] == sorted(event.at for event in life.events)
    assert [each.at for each in run.samples] == sorted({each.at for each in run.samples})
    retried = sum(max(0, each.tries - 1) for each in run.requests)
    assert retried <= run.retries, "a try that was not paid for from the budget"
