"""A grammar is compiled once, by a thread of its own: nobody else waits for it."""

import threading

import pytest
from decoding import random_model
from threeloops.product.batching import Engine
from threeloops.product.decode import BlockManager, ModelRunner
from threeloops.product.grammar import GrammarError, Grammars, grammar_of_choice
from threeloops.product.request import Request, Sampling
from threeloops.product.service.engine.counting import CountingExecutor
from threeloops.product.service.engine.messages import AskStats, Cancel, Finished, Stats, Submit, Tokens
from threeloops.product.service.engine.process import _Server

PATIENCE = 60
SPELLED = [b"", *(bytes([byte]) for byte in range(97, 97 + 60))]


class Watched(Grammars):
    """Compiles when it may, and notes in which thread."""

    def __init__(self):
        super().__init__(SPELLED, [0])
        self.may_compile, self.threads = threading.Event(), []

    def _compile(self, grammar):
        self.threads.append(threading.current_thread())
        assert self.may_compile.wait(PATIENCE)
        return super()._compile(grammar)


class Front:
    """The other end of an engine's process, in this one."""

    def __init__(self, *messages):
        self.said, self._heard, self._changed = [], list(messages), threading.Condition()

    def hear(self, message):
        with self._changed:
            self._heard.append(message)
            self._changed.notify()

    def heard(self, wait):
        with self._changed:
            assert not wait or self._changed.wait_for(lambda: self._heard, PATIENCE)
            heard, self._heard = self._heard, []
        return heard

    def tell(self, messages):
        self.said += messages

    def ends(self):
        return {message.number: message.outcome for message in self.said if isinstance(message, Finished)}

    def tokens(self, number):
        return [
            token for message in self.said if isinstance(message, Tokens) for token in message.tokens.get(number, ())
        ]


def server_of(front, grammars):
    runner = ModelRunner(random_model(), 32, 4, grammars=grammars)
    return _Server(Engine(CountingExecutor(runner), BlockManager(32, 4)), front, 64)


def submit(number, grammar="", tokens=5):
    return Submit(number, (1, 2), Sampling(tokens, stop=frozenset({0}), grammar=grammar))


def turn_until_ended(server, front, *numbers):
    while not set(numbers) <= front.ends().keys():
        server.turn()


def test_others_are_answered_while_a_grammar_is_compiled_and_it_is_compiled_once():
    grammars, front = Watched(), Front(submit(1, grammar_of_choice(["abc"])), submit(2), submit(3))
    server = server_of(front, grammars)
    turn_until_ended(server, front, 2, 3)
    assert not front.tokens(1) and 1 not in front.ends()
    grammars.may_compile.set()
    turn_until_ended(server, front, 1)
    assert bytes(b"".join(SPELLED[token] for token in front.tokens(1))) == b"abc"
    assert len(grammars.threads) == 1 and grammars.threads[0] is not threading.current_thread()


def test_a_grammar_that_was_compiled_stays_so_until_its_request_is_computed():
    """More grammars than are kept for later requests come between its check and its first token."""
    grammars = Watched()
    grammars.may_compile.set()
    runner = ModelRunner(random_model(), 32, 4, grammars=grammars)
    front = Front(*(submit(number, grammar_of_choice([f"a{'b' * number}"]), tokens=2) for number in range(100)))
    server = _Server(Engine(CountingExecutor(runner), BlockManager(32, 4)), front, 64)
    turn_until_ended(server, front, *range(100))
    assert len(grammars.threads) == 100 and threading.current_thread() not in grammars.threads
    assert set(front.ends().values()) == {"length", "stop"}


def test_a_grammar_that_cannot_be_compiled_is_told_and_others_go_on():
    grammars, front = Watched(), Front(submit(1, "start: ("), submit(2))
    grammars.may_compile.set()
    turn_until_ended(server_of(front, grammars), front, 1, 2)
    assert front.ends()[1] == "ungrammatical" and front.ends()[2] in ("length", "stop")


def test_a_library_that_panics_fails_one_request():
    class Panic(BaseException):
        """The kind of error of Rust's panics."""

    class Panicking(Grammars):
        def matcher(self, grammar):
            raise Panic("index out of bounds")

    front = Front(submit(1, grammar_of_choice(["abc"])), submit(2))
    turn_until_ended(server_of(front, Panicking(SPELLED, [0])), front, 1, 2)
    (failed,) = [message for message in front.said if isinstance(message, Finished) and message.number == 1]
    assert failed.outcome == "failed" and "index out of bounds" in failed.message


def test_a_client_that_leaves_while_its_grammar_is_compiled_is_forgotten():
    grammars = Watched()
    front = Front(submit(1, grammar_of_choice(["abc"])), AskStats(7))
    server = server_of(front, grammars)
    server.turn()
    front.hear(Cancel(1))
    front.hear(AskStats(8))
    server.turn()
    assert [stats.stats.streams for stats in front.said if isinstance(stats, Stats)] == [1, 0]
    grammars.may_compile.set()
    front.hear(submit(2))
    turn_until_ended(server, front, 2)
    assert not front.tokens(1) and 1 not in front.ends()


def test_an_engine_without_a_thread_compiles_when_a_request_is_added():
    engine = Engine(ModelRunner(random_model(), 32, 4, grammars=Grammars(SPELLED, [0])), BlockManager(32, 4))
    with pytest.raises(GrammarError):
        engine.add(Request("r", (1, 2), Sampling(5, grammar="start: (")))
