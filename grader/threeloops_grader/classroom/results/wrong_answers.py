"""Recognise known mistakes: a student's answer fails in the same parts, with the same messages, as a known-wrong
answer."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.answers import KnownWrong, wrong_answers
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Exercise, manifest
from threeloops_grader.classroom.results.scores import Row
from threeloops_grader.grading.fingerprint import fingerprint
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.sandbox.pool import Sandbox

__all__ = ["Mistake", "Signatures", "common_mistakes", "signatures"]

_COMPARED = 300
"""Characters of a message that are compared: nbgrader cuts long outputs."""

Signatures = dict[str, dict[str, str]]
"""The joined names of known-wrong answers that fail in the same way, by exercise and by a hash of that way."""


@dataclass(frozen=True)
class Mistake:
    """A way in which an exercise failed, and how many did. `known_as` names wrong answers of the lab; "" if none."""

    exercise: str
    students: int
    known_as: str
    parts: tuple[str, ...]
    message: str


def common_mistakes(lab: Lab, rows: Sequence[Row], wrong: Signatures) -> list[Mistake]:
    """Return the ways in which exercises failed, the commonest first. An untouched exercise is not an answer, and is
    left out."""
    mistakes: dict[tuple[str, str], Mistake] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for exercise in manifest(lab).exercises:
            failed = {test: row.messages[test] for test in exercise.tests if test in row.messages}
            if not failed or all("NotImplementedError" in text for text in failed.values()):
                continue
            key = exercise.id, _signature(failed)
            counts[key] += 1
            name = wrong.get(exercise.id, {}).get(key[1], "")
            mistakes[key] = Mistake(exercise.id, counts[key], name, tuple(failed), next(iter(failed.values())))
    return sorted(mistakes.values(), key=lambda mistake: (-mistake.students, mistake.exercise, mistake.message))


def signatures(lab: Lab, sandbox: Sandbox, cache: Path) -> Signatures:
    """Return how each known-wrong answer fails. The answers are graded once for each version of the lab, and the
    results are saved in `cache`.

    Exercises do not depend on each other, so one submission holds a wrong answer to each of them.
    """
    answers = wrong_answers(lab)
    decides = hashlib.sha256(fingerprint(lab, None, sandbox, None, False).encode())
    for answer in answers:
        decides.update(answer.name.encode() + answer.text.encode())
    try:
        data = json.loads(cache.read_text(encoding="utf-8"))
        if data["decides"] == decides.hexdigest():
            return data["signatures"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    graded = _graded(lab, sandbox, answers)
    cache.parent.mkdir(parents=True, exist_ok=True)
    replace_text(cache, json.dumps({"decides": decides.hexdigest(), "signatures": graded}, indent=1) + "\n")
    return graded


def _graded(lab: Lab, sandbox: Sandbox, answers: Sequence[KnownWrong]) -> Signatures:
    of_exercise: dict[str, list[KnownWrong]] = defaultdict(list)
    for answer in answers:
        of_exercise[answer.exercise].append(answer)
    names_of: Signatures = defaultdict(dict)
    for together in zip_longest(*of_exercise.values()):
        chosen = {answer.exercise: answer for answer in together if answer is not None}
        notebook = lab.answered({exercise: answer.text for exercise, answer in chosen.items()})
        record = grade_notebook(notebook, lab, "wrong", Options(sandbox))
        outputs = {test.name: test.output for test in record.tests if test.score < test.max_score}
        for exercise in manifest(lab).exercises:
            if exercise.id in chosen and (failed := _of(exercise, outputs)):
                name = chosen[exercise.id].name.partition("__")[2].replace("_", " ")
                names = names_of[exercise.id]
                names[_signature(failed)] = " or ".join(filter(None, [names.get(_signature(failed), ""), name]))
    return dict(names_of)


def _of(exercise: Exercise, outputs: dict[str, str]) -> dict[str, str]:
    return {test: outputs[test] for test in exercise.tests if test in outputs}


def _signature(failed: dict[str, str]) -> str:
    text = json.dumps({test: " ".join(message.split())[:_COMPARED] for test, message in sorted(failed.items())})
    return hashlib.sha256(text.encode()).hexdigest()[:24]
