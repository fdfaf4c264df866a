import asyncio
import contextlib
import dataclasses
import logging
import random

import pytest
import redis
from real_redis import RealRedis
from threeloops.product.request import Sampling
from threeloops.product.service.response_cache import ResponseCache

KEY = ResponseCache.key("v1", [1, 2, 3], Sampling())
PATIENT = 20.0
"""Seconds, where the timeout is not what is tested: this machine may be busy."""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def server():
    server = RealRedis()
    yield server
    server.kill()


@pytest.fixture
def direct(server):
    """An ordinary client, to look behind the cache's back."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


@contextlib.asynccontextmanager
async def cache_at(url, **options):
    cache = ResponseCache(url, **{"timeout": PATIENT, **options})
    try:
        yield cache
    finally:
        await cache.close()


def counts(cache):
    return cache.hits, cache.misses, cache.errors


def test_what_was_stored_comes_back_until_its_time_is_over(server, direct):
    async def main():
        async with cache_at(server.url, seconds_to_live=1000) as cache:
            assert await cache.get(KEY) is None
            await cache.put(KEY, b"answer \x00\xff")
            assert await cache.get(KEY) == b"answer \x00\xff"
            assert counts(cache) == (1, 1, 0)
        assert 990 < direct.ttl(KEY) <= 1000
        async with cache_at(server.url) as another:
            assert await another.get(KEY) == b"answer \x00\xff"

    asyncio.run(main())


def test_many_at_once_wait_for_a_connection_and_are_no_failure(server, direct):
    async def main():
        async with cache_at(server.url) as cache:
            await cache.put(KEY, b"a")
            assert set(await asyncio.gather(*(cache.get(KEY) for _ in range(500)))) == {b"a"}
            assert counts(cache) == (500, 0, 0)

    asyncio.run(main())


def test_an_answer_that_is_too_long_is_not_stored(server, direct):
    async def main():
        async with cache_at(server.url, largest_bytes=100) as cache:
            await cache.put(KEY, b"x" * 101)
            assert direct.exists(KEY) == 0
            await cache.put(KEY, b"x" * 100)
            assert await cache.get(KEY) == b"x" * 100
        async with cache_at(server.url, largest_bytes=99) as smaller:
            assert await smaller.get(KEY) is None

    asyncio.run(main())


def test_the_key_changes_with_all_that_changes_the_answer_and_with_nothing_else():
    greedy = Sampling(max_tokens=9)
    base = ("v1", (1, 2, 3), greedy, "")
    others = [
        ("v2", (1, 2, 3), greedy, ""),
        ("v1", (1, 2), greedy, ""),
        ("v1", (12, 3), greedy, ""),
        ("v1", (1, 2, 3), dataclasses.replace(greedy, max_tokens=8), ""),
        ("v1", (1, 2, 3), dataclasses.replace(greedy, stop=frozenset({3})), ""),
        ("v1", (1, 2, 3), greedy, "\n"),
    ]
    keys = {ResponseCache.key(*each) for each in [base, *others]}
    assert len(keys) == 7
    same = dataclasses.replace(greedy, seed=4, top_k=3, top_p=0.5)
    assert ResponseCache.key("v1", [1, 2, 3], same) == ResponseCache.key(*base)


def test_an_answer_that_depends_on_chance_is_neither_looked_up_nor_stored(server, direct):
    key = ResponseCache.key("v1", [1], Sampling(temperature=0.7, seed=3))
    assert key is None

    async def main():
        async with cache_at(server.url) as cache:
            await cache.put(key, b"answer")
            assert await cache.get(key) is None
            assert counts(cache) == (0, 0, 0)
        assert direct.dbsize() == 0

    asyncio.run(main())


def damages(direct):
    """What may stand under a key instead of an answer."""
    stored = direct.get(KEY)
    flipped = stored[:-1] + bytes([stored[-1] ^ 1])
    other = ResponseCache.key("v1", [4], Sampling())
    return {
        "nothing like it": lambda: direct.set(KEY, b"hello"),
        "one bit": lambda: direct.set(KEY, flipped),
        "cut off": lambda: direct.set(KEY, stored[:-1]),
        "another key's answer": lambda: direct.set(KEY, direct.get(other)),
        "very long": lambda: direct.set(KEY, b"x" * 10**7),
        "another type": lambda: (direct.delete(KEY), direct.lpush(KEY, "x")),
    }


def test_something_else_under_the_key_is_a_miss_and_an_error_and_is_replaced(server, direct, caplog):
    async def main():
        async with cache_at(server.url) as cache:
            await cache.put(ResponseCache.key("v1", [4], Sampling()), b"another answer")
            await cache.put(KEY, b"answer")
            for name, damage in damages(direct).items():
                before = counts(cache)
                damage()
                assert await cache.get(KEY) is None, name
                assert counts(cache) == (before[0], before[1] + 1, before[2] + 1), name
                await cache.put(KEY, b"answer")
                assert await cache.get(KEY) == b"answer", name

    asyncio.run(main())


def test_redis_that_dies_costs_a_few_errors_and_is_used_again_when_it_is_back(caplog):
    server, clock = RealRedis(), Clock()

    async def main():
        async with cache_at(server.url, pause=5, clock=clock) as cache:
            await cache.put(KEY, b"answer")
            server.kill()
            for _ in range(100):
                assert await cache.get(KEY) is None
            assert counts(cache) == (0, 100, 3)  # after three it is left alone
            clock.now += 5
            assert await asyncio.gather(*(cache.get(KEY) for _ in range(10))) == [None] * 10
            assert cache.errors == 4  # one tries
            server.start()
            assert await cache.get(KEY) is None
            assert cache.errors == 4
            clock.now += 5
            assert await cache.get(KEY) is None  # it came back empty
            await cache.put(KEY, b"answer")
            assert await cache.get(KEY) == b"answer"
            assert cache.errors == 4

    try:
        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
    finally:
        server.kill()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Redis failed 3 times in a row (ConnectionError)",
        "Redis answers again",
    ]


def test_redis_that_is_nearly_too_slow_for_everybody_is_left_alone_too(caplog):
    """Every answer comes in time, and every request would be later than without a cache."""
    clock = Clock()

    class Slow:
        seconds, asked = 0.09, 0

        async def getrange(self, *_):
            clock.now += self.seconds
            self.asked += 1
            return b""

    async def main():
        async with cache_at("redis://127.0.0.1:1", timeout=0.1, pause=5, clock=clock) as cache:
            real, cache._redis = cache._redis, Slow()
            for _ in range(100):
                assert await cache.get(KEY) is None
            assert (cache._redis.asked, cache.errors) == (3, 3)
            clock.now += 5
            for _ in range(100):
                await cache.get(KEY)
            assert cache._redis.asked == 4, "one tries"
            cache._redis.seconds, clock.now = 0.01, clock.now + 5
            for _ in range(100):
                await cache.get(KEY)
            assert (cache._redis.asked, cache.errors) == (104, 4)
            cache._redis = real

    asyncio.run(main())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Redis failed 3 times in a row (slow)",
        "Redis answers again",
    ]


def test_a_password_is_in_no_log_and_a_wrong_one_is_a_miss(server, direct, caplog):
    async def main():
        async with cache_at(f"redis://:hunter2@127.0.0.1:{server.port}/0") as cache:
            for _ in range(4):
                assert await cache.get(KEY) is None
            assert "hunter2" not in repr(cache)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert "failed 3 times" in caplog.text
    assert "hunter2" not in caplog.text


GARBAGE = {
    "silence": b"",
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a length without its text": b"$999999999\r\nabc",
    "a negative length": b"$-5\r\n",
    "no number": b"$abc\r\n\xff\xfe\r\n",
    "deep arrays": b"*1\r\n" * 5000,
    "an error": b"-ERR \xff\xfe nonsense\r\n",
    "a number": b":5\r\n",
    "too many replies": b"+OK\r\n" * 50,
    "bytes": random.Random(0).randbytes(2000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("hangs_up", [False, True], ids=["stays", "hangs up"])
def test_redis_that_answers_garbage_is_a_miss(garbage, hangs_up):
    async def main():
        async def answer(reader, writer):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    writer.write(garbage)
                    if hangs_up:
                        break
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with cache_at(f"redis://127.0.0.1:{port}/0", timeout=0.05) as cache:
                for _ in range(4):
                    assert await cache.get(KEY) is None
                    await cache.put(KEY, b"answer")
                assert cache.hits == 0
                assert cache.misses == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"seconds_to_live": 0}, "seconds_to_live = 0"), ({"largest_bytes": 1.5}, "largest_bytes = 1.5")],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ResponseCache("redis://localhost", **options)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="scheme"):
        ResponseCache("http://user:hunter2@localhost")
