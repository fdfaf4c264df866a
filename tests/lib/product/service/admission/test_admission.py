import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.service.admission import Admission, Client, ClientLimits, Refused
from threeloops.simulation.event_loop import now, run

ANYBODY = Client("anybody")


def admission_of(max_running=1, max_queued=1):
    return Admission(max_running, max_queued, clock=now)


async def work(admission, seconds, client=ANYBODY, tokens=1, deadline=math.inf):
    """When the place was taken, or the refusal."""
    try:
        async with admission.admit(client, tokens, deadline):
            began = now()
            await asyncio.sleep(seconds)
            return began
    except Refused as refused:
        return refused


async def all_of(*coroutines):
    """They begin in this order; the loop runs each until it waits."""
    return await asyncio.gather(*coroutines)


def test_runs_so_many_queues_so_many_and_refuses_the_rest_at_once():
    async def main():
        admission = admission_of(max_running=2, max_queued=2)
        tasks = [asyncio.create_task(work(admission, 10)) for _ in range(6)]
        await asyncio.sleep(1)
        assert (admission.running, admission.queued) == (2, 2)
        assert [task.done() for task in tasks] == [False] * 4 + [True] * 2
        *served, refused, _ = await asyncio.gather(*tasks)
        assert served == [0, 0, 10, 10]
        assert (refused.status, refused.code, admission.running, admission.queued) == (503, "overloaded", 0, 0)
        assert "2 requests are running and 2 are queued" in refused.message

    run(main)


def test_first_in_first_out_even_for_one_who_comes_when_a_place_is_just_given():
    async def main():
        admission = admission_of(max_queued=9)
        first = asyncio.create_task(work(admission, 1))
        await asyncio.sleep(0)
        order = []

        async def note(name):
            async with admission.admit(ANYBODY, 1):
                order.append(name)

        queued = [asyncio.create_task(note(name)) for name in "abc"]
        await first
        late = asyncio.create_task(note("late"))
        await asyncio.gather(*queued, late)
        assert order == ["a", "b", "c", "late"]

    run(main)


def test_whoever_waits_longer_than_its_deadline_is_refused_and_the_next_one_moves_up():
    async def main():
        admission = admission_of(max_queued=9)
        first, second, third = (
            asyncio.create_task(work(admission, 10, deadline=deadline)) for deadline in (math.inf, 4, 20)
        )
        await asyncio.sleep(5)
        assert (second.done(), admission.queued) == (True, 1)
        _, impatient, patient = await asyncio.gather(first, second, third)
        assert (impatient.status, impatient.code) == (503, "deadline_exceeded")
        assert "deadline of 4 s" in impatient.message
        assert patient == 10

    run(main)


def test_nobody_waits_for_a_deadline_that_the_measured_rate_cannot_meet():
    async def main():
        admission = admission_of(max_queued=20)
        others = [asyncio.create_task(work(admission, 2)) for _ in range(16)]
        await asyncio.sleep(11)  # one leaves every 2 s; at 10 s five have left the queue, and 10 are in it
        asked = now()
        refused = await work(admission, 1, deadline=15)
        assert (refused.code, now()) == ("deadline_exceeded", asked)
        assert refused.retry_after == pytest.approx(10 * 11 / 5)
        assert "10 requests are queued" in refused.message
        assert await work(admission, 1, deadline=30) == 32
        await asyncio.gather(*others)

    run(main)


def test_a_quiet_hour_does_not_count_as_an_hour_in_the_queue():
    async def main():
        admission = admission_of(max_queued=20)
        for _ in range(3):
            served = await all_of(*(work(admission, 1, deadline=8) for _ in range(7)))
            assert [each - served[0] for each in served] == list(range(7))
            await asyncio.sleep(3600)

    run(main, seconds=4 * 3600)


def test_retry_after_grows_while_the_service_is_stuck():
    async def main():
        admission = admission_of(max_queued=9)
        quick = [asyncio.create_task(work(admission, 1)) for _ in range(6)]
        stuck = [asyncio.create_task(work(admission, 1000)) for _ in range(4)]
        await asyncio.gather(*quick)
        more = [asyncio.create_task(work(admission, 1)) for _ in range(6)]
        found = []
        for pause in (1, 100, 100):
            await asyncio.sleep(pause)
            found.append((await work(admission, 1)).retry_after)
        assert found[0] == pytest.approx(9 * 7 / 6)
        assert found[0] < found[1] < found[2]
        for task in [*stuck, *more]:
            task.cancel()

    run(main)


@pytest.mark.parametrize("moment", [0.5, 1.0])
def test_a_cancelled_waiter_leaves_no_hole(moment):
    """Also if it is cancelled in the very moment in which the place is given to it."""

    async def main():
        admission = admission_of(max_queued=2)
        first, cancelled, last = (asyncio.create_task(work(admission, 1)) for _ in range(3))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(moment, cancelled.cancel)
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        assert admission.queued == (1 if moment < 1 else 0)
        assert (await first, await last) == (0, 1)
        assert (admission.running, admission.queued) == (0, 0)

    run(main)


def test_an_error_in_the_block_frees_the_place():
    async def main():
        admission = admission_of(max_queued=0)
        with pytest.raises(KeyError):
            async with admission.admit(ANYBODY, 1):
                raise KeyError
        assert await work(admission, 0) == 0

    run(main)


def test_drain_refuses_who_comes_and_serves_who_is_queued():
    async def main():
        admission = admission_of(max_queued=5)
        inside = [asyncio.create_task(work(admission, 3)) for _ in range(3)]
        await asyncio.sleep(0)
        admission.drain()
        refused = await work(admission, 0)
        assert (refused.status, refused.code, refused.retry_after) == (503, "draining", 1)
        await admission.drained()
        assert [task.result() for task in inside] == [0, 3, 6]

    run(main)


def test_nobody_inside_is_drained_at_once():
    run(admission_of().drained)


def test_a_client_has_its_own_buckets_and_is_told_when_to_come_back():
    async def main():
        admission = admission_of(max_running=99)
        alice = Client("alice", ClientLimits(requests_per_second=0.5, request_burst=3))
        assert [await work(admission, 0, alice) for _ in range(3)] == [0, 0, 0]
        refused = await work(admission, 0, alice)
        assert (refused.status, refused.code, refused.retry_after) == (429, "rate_limit_exceeded", 2)
        assert await work(admission, 0, Client("bob", alice.limits)) == 0
        await asyncio.sleep(refused.retry_after)
        assert await work(admission, 0, alice) == 2

    run(main)


def test_tokens_are_charged_as_they_are_asked_for_and_from_both_buckets_or_from_none():
    async def main():
        admission = admission_of(max_running=99)
        limits = ClientLimits(requests_per_second=0, request_burst=2, tokens_per_second=10, token_burst=100)
        alice = Client("alice", limits)
        assert await work(admission, 0, alice, tokens=90) == 0
        for _ in range(5):  # these cost no request
            refused = await work(admission, 0, alice, tokens=30)
            assert (refused.status, refused.retry_after) == (429, 2)
        assert await work(admission, 0, alice, tokens=10) == 0
        refused = await work(admission, 0, alice, tokens=0)
        assert (refused.status, refused.retry_after) == (429, None)  # rate 0: coming back does not help

    run(main)


def test_more_tokens_than_a_client_may_ever_ask_for_is_its_mistake():
    async def main():
        refused = await work(
            admission_of(), 0, Client("a", ClientLimits(tokens_per_second=1, token_burst=50)), tokens=51
        )
        assert (refused.status, refused.param, refused.retry_after) == (400, "max_tokens", None)

    run(main)


def test_a_client_holds_at_most_so_many_places_whether_it_runs_or_waits():
    async def main():
        admission = admission_of(max_running=1, max_queued=9)
        alice = Client("alice", ClientLimits(concurrent=2))
        *inside, refused = await all_of(*(work(admission, 1, alice) for _ in range(3)))
        assert (inside, refused.status, refused.code) == ([0, 1], 429, "concurrency_limit_exceeded")
        assert await work(admission, 0, alice) == 2

    run(main)


def test_the_clients_limit_is_named_before_the_services_and_a_full_service_charges_nothing():
    async def main():
        admission = admission_of(max_queued=0)
        alice = Client("alice", ClientLimits(requests_per_second=0, request_burst=1))
        other = asyncio.create_task(work(admission, 1))
        await asyncio.sleep(0)
        assert (await work(admission, 0, alice)).status == 503
        await other
        assert await work(admission, 1, alice) == 1
        other = asyncio.create_task(work(admission, 1))
        await asyncio.sleep(0)
        assert (await work(admission, 0, alice)).status == 429
        await other

    run(main)


def test_new_limits_of_a_client_hold_at_once_and_who_is_inside_is_still_counted():
    async def main():
        admission = admission_of(max_running=9)
        inside = [asyncio.create_task(work(admission, 1, Client("a", ClientLimits(concurrent=2)))) for _ in range(2)]
        await asyncio.sleep(0)
        stricter = Client("a", ClientLimits(concurrent=1))
        assert (await work(admission, 0, stricter)).code == "concurrency_limit_exceeded"
        await asyncio.gather(*inside)
        assert await work(admission, 0, stricter) == 1

    run(main)


VISITS = st.lists(
    st.tuples(
        st.floats(0, 20),  # when it comes
        st.sampled_from([0.0, 0.5, 3.0]),  # how long it works
        st.sampled_from([0.0, 1.0, 5.0, math.inf]),  # its deadline
        st.one_of(st.none(), st.floats(0, 10)),  # when it is cancelled
    ),
    max_size=25,
)


@given(VISITS, st.integers(1, 3), st.integers(0, 4))
def test_bounds_hold_and_no_place_is_ever_lost(visits, max_running, max_queued):
    async def main():
        admission = admission_of(max_running, max_queued)
        at_work = 0

        async def visit(begin, seconds, deadline):
            nonlocal at_work
            await asyncio.sleep(begin)
            asked = now()
            try:
                async with admission.admit(ANYBODY, 1, deadline):
                    assert now() <= asked + deadline
                    at_work += 1
                    try:
                        assert at_work <= max_running
                        assert admission.queued <= max_queued
                        await asyncio.sleep(seconds)
                    finally:
                        at_work -= 1
            except Refused as refused:
                assert refused.status == 503
                assert now() <= asked + deadline

        tasks = []
        for begin, seconds, deadline, cancelled_after in visits:
            tasks.append(asyncio.create_task(visit(begin, seconds, deadline)))
            if cancelled_after is not None:
                asyncio.get_running_loop().call_later(begin + cancelled_after, tasks[-1].cancel)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        assert (admission.running, admission.queued) == (0, 0)
        await admission.drained()
        again = [await work(admission, 0) for _ in range(max_running)]
        assert not any(isinstance(each, Refused) for each in again)

    run(main)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 1), "max_running = 0"), ((1, -1), "max_queued = -1"), ((True, 1), "max_running = True")],
)
def test_bounds_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Admission(*arguments)


@pytest.mark.parametrize("deadline", [-1, math.nan])
def test_a_deadline_that_cannot_be_is_refused(deadline):
    async def main():
        with pytest.raises(ValueError, match="deadline = "):
            async with admission_of().admit(ANYBODY, 1, deadline):
                pass

    run(main)


def test_a_wait_that_nobody_lives_to_see_is_no_time_to_come_back():
    async def main():
        client = Client("c", ClientLimits(requests_per_second=1e-300, request_burst=1))
        admission = admission_of()
        await work(admission, 0, client)
        refused = await work(admission, 0, client)
        assert (refused.status, refused.code, refused.retry_after) == (429, "rate_limit_exceeded", None)
        assert "ask whoever runs this service" in refused.message and len(refused.message) < 200

    run(main)
