"""Requests to whom everything happens that can happen in an engine, and the tokens that they must have all the same.

`play` takes any executor: a new one has to pass what `ModelRunner` passes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine, Executor, Policy, by_arrival, by_priority
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Finish, Request, Sampling
from threeloops.simulation.clock import VirtualClock

LONGEST_PROMPT, LONGEST_OUTPUT = 36, 16

ExecutorFactory = Callable[[GPT, int, int], Executor]
"""An executor of a model with a cache of so many blocks of so many tokens."""


def small_model(dtype: torch.dtype, seed: int = 0, **variant: Any) -> GPT:
    """Weights so large that every token of the prompt matters to the next."""
    config = GPTConfig(
        31,
        layers=2,
        heads=4,
        kv_heads=2,
        width=32,
        mlp_width=48,
        max_sequence=80,
        tied_embeddings=False,
        **variant,
    )
    model = GPT(config).to(dtype).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.copy_(
                torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 1.5 / weight.shape[1] ** 0.5
            )
    return model


@torch.inference_mode()
def greedy(model: GPT, requests: list[Request]) -> tuple[list[list[int]], list[list[float]]]:
    """Each request alone, without a cache: all of its tokens again for every new one. Also the gap between the two best
    logits at each token. (Rows are padded at their ends, where causal attention does not look.)"""
    lengths = torch.tensor([len(request.prompt) for request in requests])
    most = max(request.sampling.max_tokens for request in requests)
    tokens = torch.zeros(len(requests), int(lengths.max()) + most, dtype=torch.long)
    for row, request in enumerate(requests):
        tokens[row, : len(request.prompt)] = torch.tensor(request.prompt)
    gaps = []
    rows = torch.arange(len(requests))
    for _ in range(most):
        last = model.hidden(tokens[:, : int(lengths.max())])[rows, lengths - 1]
        best = model.head(last).topk(2, dim=-1)
        gaps.append(best.values[:, 0] - best.values[:, 1])
        tokens[rows, lengths] = best.indices[:, 0]
        lengths = lengths + 1
    outputs = []
    for request, row in zip(requests, tokens.tolist(), strict=True):
        output = row[len(request.prompt) : len(request.prompt) + request.sampling.max_tokens]
        stops = [place for place, token in enumerate(output) if token in request.sampling.stop]
        outputs.append(output[: stops[0] + 1] if stops else output)
    return outputs, torch.stack(gaps, 1).tolist()


@dataclass
class Played:
    """Requests, which of them something was done to, and how often what happened."""

    requests: list[Request] = field(default_factory=list)
    seen: Counter = field(default_factory=Counter)


class _Unlucky:
    """Lets a request fail now and then, as if its logits were not finite."""

    def __init__(self, executor: Executor, random: Random, share: float):
        self.executor, self.random, self.share, self.check = executor, random, share, executor.check

    def execute(self, batch):
        results = list(self.executor.execute(batch))
        return [ArithmeticError("bad luck") if self.random.random() < self.share else each for each in results]


def play(factory: ExecutorFactory, model: GPT, seed: int, requests: int, *, guesses: int = 0) -> Played:
    """`requests` requests, and some forks of them, through one engine; settings and accidents come from `seed`."""
    random = Random(seed)
    block_size = random.choice((1, 2, 3, 4, 8, 16))
    most = -(-(LONGEST_PROMPT + LONGEST_OUTPUT) // block_size)
    blocks = random.randint(most, 2 * most)  # few: they are taken from each other
    policy = Policy(
        max_running=random.choice((1, 3, 6, 12)),
        token_budget=random.choice((1, 3, 8, 24, 64)),
        chunked=random.random() < 0.7,
        prefix_cache=random.random() < 0.7,
        door_opens=random.choice((None, None, None, 0.0, 0.02, float("inf"))),
        fair=random.random() < 0.3,
        guesses=guesses,
        order=random.choice((by_arrival, by_priority(0.1))),
    )
    clock, manager = VirtualClock(), BlockManager(blocks, block_size)
    executor = factory(model, blocks, block_size)
    engine = Engine(_Unlucky(executor, random, 0.004 * (seed % 2)), manager, policy, clock)
    played, names = Played(), count()
    prefixes = [_tokens(random, model, random.randint(1, LONGEST_PROMPT - 8)) for _ in range(3)]

    def new_request(prompt: tuple[int, ...]) -> Request:
        stop = frozenset({random.randrange(model.config.vocabulary_size)}) if random.random() < 0.3 else frozenset()
        sampling = Sampling(max_tokens=random.randint(1, LONGEST_OUTPUT), stop=stop)
        name, client = f"{seed}-{next(names)}", random.choice("ab")
        request = Request(name, prompt, sampling, clock.now(), random.randint(0, 3), client)
        played.requests.append(request)
        return request

    left = requests
    while left or engine.requests:
        scheduler = engine.scheduler
        for _ in range(random.choice((0, 0, 1, 2, 6))):
            if left:
                left -= 1
                prefix = random.choice(prefixes) if random.random() < 0.6 else ()
                engine.add(
                    new_request(prefix + _tokens(random, model, random.randint(1, LONGEST_PROMPT - len(prefix))))
                )
        accident = random.random()
        if accident < 0.03 and engine.requests:
            engine.cancel(random.choice(list(engine.requests)))
        elif accident < 0.13 and (can_share := [each for each in scheduler.running if each.output]):
            of = random.choice(can_share)
            fork = new_request(random.choice((of.prompt, of.tokens)))
            if len(fork.prompt) + fork.sampling.max_tokens > LONGEST_PROMPT + LONGEST_OUTPUT:
                played.requests.pop()
                continue
            engine.fork(of.id, fork)
            played.seen["forked"] += fork.running
        elif accident < 0.15 and scheduler.running + scheduler.waiting:
            scheduler.pause(random.choice(scheduler.running + scheduler.waiting))
        elif accident < 0.20 or not (scheduler.running or scheduler.waiting):
            for request in list(scheduler.paused):
                scheduler.resume(request)
        scheduler.draining = not left
        batch = engine.step()
        clock.sleep_until(clock.now() + 0.01)
        manager.check_integrity([request.block_table for request in scheduler.running])
        played.seen["steps"] += 1
        played.seen["copies"] += len(batch.copies)
        played.seen["cut prompts"] += sum(not chunk.samples for chunk in batch.chunks)
        played.seen["mixed steps"] += len({chunk.count > 1 for chunk in batch.chunks}) == 2
        assert played.seen["steps"] < 400 * requests, "somebody starves"
    assert manager.free == blocks, "blocks leaked"
    for request in played.requests:
        played.seen[request.finish] += 1
        played.seen["preempted"] += request.preemptions > 0
        played.seen["from the prefix cache"] += request.cached > 0
    return played


def differences(model: GPT, requests: list[Request]) -> list[tuple[Request, int, float]]:
    """Requests whose tokens are not those of greedy decoding alone: where, and how close the two best logits are there.

    One that was cancelled or failed must have the beginning."""
    found = []
    for request, expected, gaps in zip(requests, *greedy(model, requests), strict=True):
        whole = request.finish in (Finish.STOP, Finish.LENGTH)
        if request.output != (expected if whole else expected[: len(request.output)]):
            pairs = zip(request.output, expected, strict=False)
            place = next((place for place, (got, right) in enumerate(pairs) if got != right), -1)
            found.append((request, place, gaps[place] if place >= 0 else float("inf")))
    return found


def _tokens(random: Random, model: GPT, length: int) -> tuple[int, ...]:
    return tuple(random.choices(range(model.config.vocabulary_size), k=length))
