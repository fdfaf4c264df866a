"""Pseudonyms: the same for a lab, others for the next lab, and turned back by the class's key alone."""

import os
import stat
import string
from types import SimpleNamespace

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.marking import formgrader
from threeloops_grader.classroom.register import settings
from threeloops_grader.classroom.register.pseudonyms import key_path, pseudonym, require_key, whose

KEY = bytes(range(32))
ROSTER = [f"student{number:04}" for number in range(1000)]


def test_a_pseudonym_is_stable_for_a_lab_and_differs_between_labs():
    names = {lab: [pseudonym(KEY, lab, student) for student in ROSTER] for lab in ("01_roofline", "02_tiles")}
    assert names["01_roofline"] == [pseudonym(KEY, "01_roofline", student) for student in ROSTER]
    assert len(set(names["01_roofline"] + names["02_tiles"])) == 2000
    assert pseudonym(KEY, "01_roofline", "ada") == "IMMR-6SUR"  # people note it: a new version must give it, too


def test_without_the_key_it_cannot_be_computed():
    assert pseudonym(KEY, "01_roofline", "ada") != pseudonym(bytes(32), "01_roofline", "ada")
    assert set(pseudonym(KEY, "01_roofline", "ada")) <= set(string.ascii_uppercase + string.digits + "-")


def test_it_does_not_reveal_the_order_of_the_roster():
    """Spearman's correlation of the two orders is that of chance: below 0.1 for a thousand students."""
    by_name = sorted(ROSTER, key=lambda student: pseudonym(KEY, "01_roofline", student))
    differences = sum((by_name.index(student) - number) ** 2 for number, student in enumerate(ROSTER))
    assert abs(1 - 6 * differences / (1000 * (1000**2 - 1))) < 0.1


def test_it_is_turned_back_however_it_is_typed():
    name = pseudonym(KEY, "01_roofline", "ada")
    for typed in (name, name.lower(), f" {name.replace('-', '')} ", name.replace("O", "0").replace("I", "1")):
        assert whose(KEY, typed, ["00_start_here", "01_roofline"], ["bob", "ada"]) == [("01_roofline", "ada")]
    assert whose(KEY, name, ["00_start_here"], ["bob", "ada"]) == []


def test_two_spellings_of_one_name_are_one_student():
    assert pseudonym(KEY, "01_roofline", "zoe\u0308") == pseudonym(KEY, "01_roofline", "zo\u00eb")


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    key = require_key(tmp_path)
    assert len(key) == 32 and require_key(tmp_path) == key
    assert stat.S_IMODE(key_path(tmp_path).stat().st_mode) == 0o600
    key_path(tmp_path).chmod(0o644)  # as a careless copy leaves it
    assert require_key(tmp_path) == key and stat.S_IMODE(key_path(tmp_path).stat().st_mode) == 0o600
    assert [path.name for path in key_path(tmp_path).parent.iterdir()] == ["pseudonyms.key"]


def test_a_damaged_key_is_never_replaced(tmp_path):
    require_key(tmp_path)
    key_path(tmp_path).write_bytes(b"short")
    with pytest.raises(LabError, match="has 5 bytes, expected 32: it is damaged. Restore it from a backup"):
        require_key(tmp_path)
    assert key_path(tmp_path).read_bytes() == b"short"


def test_a_full_disk_leaves_no_key(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        require_key(tmp_path)
    assert list(key_path(tmp_path).parent.iterdir()) == []


def page_of(root, anonymous: bool) -> dict:
    """What formgrader's page of a submission is made from."""
    settings.save(settings.Settings(anonymous=anonymous), root)
    resources = {"submission_id": "1f", "assignment_id": "01_roofline", "student": "ada", "first_name": "Ada"}
    resources |= {"last_name": "Lovelace", "notebook_path": "autograded/ada/01_roofline/01_roofline.ipynb"}
    step = formgrader.HideStudent()
    step.config.CourseDirectory.root = str(root)
    return step.preprocess(SimpleNamespace(cells=[]), resources)[1]


def test_the_page_of_a_submission_names_nobody_if_marking_is_anonymous(tmp_path):
    assert page_of(tmp_path, anonymous=False)["last_name"] == "Lovelace"
    page = page_of(tmp_path, anonymous=True)
    assert page["student"] == pseudonym(require_key(tmp_path), "01_roofline", "ada")
    assert not {"ada", "Ada", "Lovelace"} & set(map(str, page.values())) and page["notebook_path"] == ""
