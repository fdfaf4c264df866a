"""Submissions that mean harm: each earns what an honest answer would have earned, and nobody else notices.

Every attack is the answer to exercise `mean` (40 points) of an otherwise honest submission. Afterwards an honest
submission is graded by the same warm processes; at the end of the file no process and no folder may be left.
"""

import os
import socket
from pathlib import Path

import pytest
from attacks.endings import ENDINGS
from attacks.forgeries import FORGERIES
from attacks.lies import LIES
from attacks.patches import PATCHES
from attacks.resources import RESOURCES
from attacks.secrets import SECRETS
from grading import fresh_course, grade, needs, points, said, submission

import grader

ATTACKS = ENDINGS | RESOURCES | SECRETS | LIES | PATCHES | FORGERIES


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "marks_of_everybody.db").touch()
    os.environ["THREELOOPS_TOKEN"] = "TOKEN"
    try:
        with fresh_course(folder) as lab:
            yield lab
    finally:
        del os.environ["THREELOOPS_TOKEN"]


@pytest.fixture(scope="module")
def places(lab):
    """What attacks aim at: the course, and two sockets of this machine that listen."""
    name = f"threeloops-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        port = str(server.getsockname()[1])
        yield {"ROOT": str(lab.root), "COURSE": str(Path(grader.__file__).parent), "PORT": port, "NAME": name}


@pytest.mark.parametrize(("name", "sandbox"), [(name, s) for name, attack in ATTACKS.items() for s in attack.sandboxes])
def test_an_attack_earns_what_an_honest_answer_would(lab, places, name, sandbox):
    needs(sandbox)
    attack = ATTACKS[name]
    answer = attack.answer
    for word, place in places.items():
        answer = answer.replace(word, place)
    record = grade(lab, submission(lab, attack.before, mean=answer), sandbox, attack.limits)
    earned = points(record)
    assert earned["mean"] == attack.earns, said(record)
    assert attack.other in (earned["rescale"], None), said(record)
    assert attack.says in said(record)
    assert record.status == "graded"
    honest = grade(lab, submission(lab), sandbox)
    assert points(honest) == {"mean": 40.0, "rescale": 60.0}, said(honest)
    assert honest.notes == []
