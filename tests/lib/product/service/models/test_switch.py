import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.service.models import NotServingError, RollingSwitch, SwitchFailedError
from threeloops.simulation.event_loop import now, run


class Engines:
    """Starts engines that count; a version whose name begins with "bad" does not start."""

    def __init__(self, seconds=1.0):
        self.seconds = seconds
        self.open, self.most, self.starting = [], 0, 0

    async def start(self, version):
        self.starting += 1
        self.most = max(self.most, len(self.open) + self.starting)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.starting -= 1
        if version.startswith("bad"):
            raise OSError("no memory")
        engine = f"{version} engine"
        self.open.append(engine)
        return engine

    async def stop(self, engine):
        await asyncio.sleep(0.5)
        self.open.remove(engine)

    def switch(self):
        return RollingSwitch(self.start, self.stop)


async def use(switch, seconds, engines):
    async with switch.lease() as engine:
        for _ in range(4):
            assert engine in engines.open
            await asyncio.sleep(seconds / 4)
        assert engine in engines.open
    return engine


def test_before_the_first_version_nothing_is_served():
    async def main():
        switch = Engines().switch()
        assert switch.current is None
        with pytest.raises(NotServingError, match="wait until it is ready"):
            async with switch.lease():
                pass

    run(main)


def test_new_requests_go_to_the_new_version_once_it_is_ready_and_old_ones_end_where_they_began():
    async def main():
        engines = Engines(seconds=10)
        switch = engines.switch()
        await switch.to("a")
        old = asyncio.create_task(use(switch, 100, engines))
        await asyncio.sleep(0)
        switching = asyncio.create_task(switch.to("b"))
        await asyncio.sleep(5)
        assert (switch.current, switch.starting) == ("a", "b")
        assert await use(switch, 1, engines) == "a engine"
        await asyncio.sleep(5)
        assert (switch.current, switch.starting) == ("b", None)
        assert await use(switch, 1, engines) == "b engine"
        assert not switching.done()
        assert await old == "a engine"
        await switching
        assert (engines.open, now()) == (["b engine"], 110.5)

    run(main)


def test_a_version_that_does_not_start_leaves_the_old_one_serving_and_says_why():
    async def main():
        engines = Engines()
        switch = engines.switch()
        with pytest.raises(SwitchFailedError, match="version bad did not start: no memory; nothing is served"):
            await switch.to("bad")
        await switch.to("a")
        with pytest.raises(SwitchFailedError, match="version bad did not start: no memory; a is still served"):
            await switch.to("bad")
        assert (switch.current, switch.starting, engines.open) == ("a", None, ["a engine"])
        assert await use(switch, 1, engines) == "a engine"
        await switch.to("b")
        assert engines.open == ["b engine"]

    run(main)


def test_switches_at_once_happen_one_after_another():
    async def main():
        engines = Engines()
        switch = engines.switch()
        outcomes = await asyncio.gather(*map(switch.to, ["a", "b", "bad", "b", "c"]), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(SwitchFailedError) == 1
        assert (switch.current, engines.open, engines.most) == ("c", ["c engine"], 2)
        assert now() == 4 * 1 + 2 * 0.5  # the second "b" was served already

    run(main)


def test_a_caller_who_is_cancelled_during_the_start_changes_nothing():
    async def main():
        engines = Engines()
        switch = engines.switch()
        await switch.to("a")
        switching = asyncio.create_task(switch.to("b"))
        await asyncio.sleep(0.5)
        switching.cancel()
        await asyncio.wait([switching])
        assert (switch.current, switch.starting, engines.open) == ("a", None, ["a engine"])
        await switch.to("b")
        assert engines.open == ["b engine"]

    run(main)


def test_a_caller_who_is_cancelled_during_the_drain_does_not_leave_the_old_engine_behind():
    async def main():
        engines = Engines()
        switch = engines.switch()
        await switch.to("a")
        old = asyncio.create_task(use(switch, 10, engines))
        switching = asyncio.create_task(switch.to("b"))
        await asyncio.sleep(5)
        switching.cancel()
        await asyncio.wait([switching])
        assert switch.current == "b"
        await switch.to("c")  # waits until "a" is gone: never three
        assert await old == "a engine"
        assert (engines.open, engines.most) == (["c engine"], 2)

    run(main)


def test_an_engine_that_cannot_be_stopped_does_not_stop_the_switch(caplog):
    async def main():
        async def stop(engine):
            raise OSError("stuck")

        switch = RollingSwitch(Engines().start, stop)
        await switch.to("a")
        await switch.to("b")
        await switch.to("c")
        assert switch.current == "c"

    run(main)
    assert "the engine of version a could not be stopped" in caplog.text


def test_close_waits_for_leases_and_gives_out_no_more():
    async def main():
        engines = Engines()
        switch = engines.switch()
        await switch.to("a")
        old = asyncio.create_task(use(switch, 10, engines))
        await asyncio.sleep(0)
        closing = asyncio.create_task(switch.close())
        await asyncio.sleep(1)
        with pytest.raises(NotServingError):
            async with switch.lease():
                pass
        assert not closing.done()
        await closing
        assert (await old, engines.open) == ("a engine", [])
        with pytest.raises(NotServingError, match="closed"):
            await switch.to("b")
        await switch.close()

    run(main)


def test_close_during_a_switch_gives_out_no_more_at_once():
    async def main():
        engines = Engines(seconds=10)
        switch = engines.switch()
        await switch.to("a")
        switching = asyncio.create_task(switch.to("b"))
        await asyncio.sleep(1)
        closing = asyncio.create_task(switch.close())
        await asyncio.sleep(0)
        with pytest.raises(NotServingError):
            async with switch.lease():
                pass
        await asyncio.gather(switching, closing)
        assert engines.open == []

    run(main)


def test_close_ends_the_wait_for_leases_after_its_limit():
    async def main():
        engines = Engines()
        switch = engines.switch()
        await switch.to("a")

        async def stuck():
            async with switch.lease():
                await asyncio.sleep(1000)

        lease = asyncio.create_task(stuck())
        await asyncio.sleep(0)
        before = now()
        await switch.close(drain_seconds=7)
        assert (engines.open, now() - before) == ([], 7.5)
        lease.cancel()

    run(main)


MOMENTS = st.floats(0, 30)
LEASES = st.lists(st.tuples(MOMENTS, st.floats(0, 12)), max_size=15)
SWITCHES = st.lists(
    st.tuples(MOMENTS, st.sampled_from(["a", "b", "c", "bad"]), st.one_of(st.none(), st.floats(0, 4))), max_size=8
)


@given(LEASES, SWITCHES)
def test_no_lease_is_ever_dropped_or_handed_a_closed_engine(leases, switches):
    """Whatever switches when, fails to start, or is cancelled; and never more than two engines are open."""

    async def main():
        engines = Engines()
        switch = engines.switch()
        await switch.to("first")

        async def lease(begin, seconds):
            await asyncio.sleep(begin)
            return await use(switch, seconds, engines)

        async def to(begin, version):
            await asyncio.sleep(begin)
            await switch.to(version)

        users = [asyncio.create_task(lease(*each)) for each in leases]
        turns = []
        for begin, version, cancelled_after in switches:
            turns.append(asyncio.create_task(to(begin, version)))
            if cancelled_after is not None:
                asyncio.get_running_loop().call_later(begin + cancelled_after, turns[-1].cancel)
        for outcome in await asyncio.gather(*turns, return_exceptions=True):
            assert outcome is None or isinstance(outcome, (SwitchFailedError, asyncio.CancelledError)), outcome
        await asyncio.gather(*users)
        assert engines.most <= 2
        assert f"{switch.current} engine" in engines.open
        await switch.close()
        assert engines.open == []

    run(main)
