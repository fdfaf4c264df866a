import pytest
from threeloops.product.service.admission.queue_rate import QueueRate


def leaving(rate, begin, gap, count):
    rate.begins(begin)
    for number in range(1, count + 1):
        rate.left(begin + number * gap)
    return begin + count * gap


def test_nothing_is_said_before_enough_was_measured():
    rate = QueueRate()
    assert rate.seconds(1, 0) is None
    now = leaving(rate, 0, 1, 3)
    assert rate.seconds(1, now) is None
    rate.left(now + 1)
    assert rate.seconds(10, now + 1) == 10


def test_time_without_a_queue_does_not_count():
    rate = QueueRate()
    leaving(rate, 0, 2, 10)
    rate.begins(1e6)
    assert rate.seconds(3, 1e6) == 6
    now = leaving(rate, 2e6, 0.5, 10)
    assert rate.seconds(4, now) == 2


def test_a_queue_that_stands_still_empties_ever_more_slowly():
    rate = QueueRate()
    now = leaving(rate, 0, 1, 9)
    assert rate.seconds(1, now) == 1
    assert rate.seconds(1, now + 81) == 10


def test_quiet_time_after_the_last_queue_does_not_count_either():
    rate = QueueRate()
    leaving(rate, 0, 1, 9)
    assert rate.seconds(2, None) == 2


def test_what_was_long_ago_is_forgotten():
    rate = QueueRate()
    now = leaving(rate, 0, 100, 50)
    for _ in range(100):
        now += 1
        rate.left(now)
    assert rate.seconds(1, now) == pytest.approx(1)


def test_a_short_queue_does_not_overrule_a_long_one():
    rate = QueueRate()
    leaving(rate, 0, 2, 10)
    leaving(rate, 100, 50, 1)
    rate.begins(500)
    assert rate.seconds(1, 500) == 2
