"""Pipeline schedules for tests: written as text, drawn at random, and executed by rules of their own."""

import random

from threeloops.training.pipeline import Action, Schedule


def written(text, placement, microbatches):
    """A schedule from a line per rank, actions as torch writes them: 0F1 is the forward of microbatch 1 on stage 0."""
    rows = [[Action(word[1], int(word[0]), int(word[2:])) for word in line.split()] for line in text.split("\n")]
    return Schedule(rows, tuple(placement), microbatches)


def allowed(action, stages, done):
    """Whether what an action needs is done, and the action itself is not."""
    kind, stage, i = action
    whole, first, second = ("B", stage, i) in done, ("I", stage, i) in done, ("W", stage, i) in done
    if kind == "F":
        return ("F", stage, i) not in done and (stage == 0 or ("F", stage - 1, i) in done)
    if kind == "W":
        return first and not second
    following = {("B", stage + 1, i), ("I", stage + 1, i)} & done or stage == stages - 1
    return ("F", stage, i) in done and not whole and not first and bool(following)


def executable(schedule, complete):
    """Whether the rows can be executed as they stand, and to the end; or, not `complete`, if ranks that are through
    with their rows go on as they like."""
    stages, done = schedule.stages, set()
    every = [(k, s, i) for k in "FBIW" for s in range(stages) for i in range(schedule.microbatches)]
    todo = [list(row) for row in schedule.rows]
    going = True
    while going:
        going = False
        for rank, row in enumerate(todo):
            mine = [action for action in every if schedule.placement[action[1]] == rank]
            if row and tuple(row[0]) in mine and allowed(row[0], stages, done):
                done.add(tuple(row.pop(0)))
                going = True
            elif not row and not complete:
                free = [action for action in mine if allowed(action, stages, done)]
                done.update(free[:1])
                going = going or bool(free)
    kinds = {"F", "B", "W"}
    ended = {(kind, s, i) for kind, s, i in done if kind in kinds}
    return not any(todo) and len(ended) == 2 * stages * schedule.microbatches


def drawn(seed, ranks, chunks, microbatches):
    """Any legal schedule: stages on ranks at random, and then one allowed action after another."""
    chance = random.Random(seed)
    placement = list(range(ranks)) * chunks
    chance.shuffle(placement)
    stages, done, rows = len(placement), set(), [[] for _ in range(ranks)]
    split = {(s, i): chance.random() < 0.5 for s in range(stages) for i in range(microbatches)}
    kinds = {key: "FIW" if split[key] else "FB" for key in split}
    every = [(kind, s, i) for s, i in split for kind in kinds[s, i]]
    while len(done) < len(every):
        action = chance.choice([action for action in every if action not in done and allowed(action, stages, done)])
        done.add(action)
        rows[placement[action[1]]].append(Action(*action))
    return Schedule(rows, tuple(placement), microbatches)
