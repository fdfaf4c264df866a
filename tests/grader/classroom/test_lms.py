"""Roster and grades over LTI 1.3, against a platform that is played on loopback."""

import json
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_platform import CLIENT, NRPS, ROLE, Platform, member
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.lms import platform as lms
from threeloops_grader.classroom.lms.members import fetch_roster
from threeloops_grader.classroom.lms.push import opened_journal, push
from threeloops_grader.classroom.register.roster import Roster, Student, saved_roster, with_dropped
from threeloops_grader.classroom.results.scores import Row
from toy_class import make_class_course, threeloops
from toy_course import make_course

PEOPLE = [
    member("u-ada", "Ada Lovelace", email="ada@u.edu", lis_person_sourcedid="1001"),
    member("u-bob", "Bob Unger", email="bob@u.edu"),
    member("u-cyd", "Cyd E", email="cyd@u.edu"),
    member("u-dee", "Dee F", email="dee@u.edu"),
    member("u-pro", "Pro Fessor", role="Instructor", email="pro@u.edu"),
]
ADA, BOB, CYD, DEE = (Student(m["name"][:3].lower(), lti_id=m["user_id"]) for m in PEOPLE[:4])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Making a key takes longer than most tests: they share one. Nothing waits for the platform to have time."""
    root = tmp_path_factory.mktemp("keys")
    lms.make_key(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lms, "_BACKOFF", 0)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield root


def set_up(platform, root, keys, **values):
    """Enter the platform's values in a course, and the course's public key at the platform."""
    (root / "class").mkdir(exist_ok=True)
    shutil.copy2(keys / "class/lms_key.pem", root / "class/lms_key.pem")
    platform.jwk = json.loads(lms.json_of(lms.key_of(root)))
    lms.save(lms.Platform(**{**platform.values, **values}), root)


@pytest.fixture
def platform(tmp_path, keys):
    with Platform(PEOPLE) as played:
        set_up(played, tmp_path, keys)
        yield played


@pytest.fixture
def lab(tmp_path):
    return make_course(tmp_path)


def row(student, score, status="graded", **more):
    return Row(student, status, 100.0, score=score, **more)


def push_all(lab, rows, connector=None, **options):
    with opened_journal(lab.root) as journal:
        return push(lab, rows, connector or lms.connect(lab.root), journal, **options)


# the key and the addresses


def test_the_key_is_made_once_and_nobody_else_can_read_it(tmp_path):
    old = os.umask(0)
    try:
        assert lms.make_key(tmp_path)
    finally:
        os.umask(old)
    path = tmp_path / "class/lms_key.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert not lms.make_key(tmp_path) and path.read_bytes() == before
    jwk = json.loads(lms.json_of(lms.key_of(tmp_path)))
    assert set(jwk) == {"kty", "n", "e", "kid", "alg", "use"}, "no private part"
    path.chmod(0o644)
    with pytest.raises(LabError, match="mode 644, so others may have read the key; delete it"):
        lms.key_of(tmp_path)
    path.chmod(0o600)
    path.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(LabError, match="not a private key .*; delete it, run `threeloops class lms init`"):
        lms.key_of(tmp_path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "http://canvas.example.edu/token",
            "not encrypted, so tokens and grades are not sent to it; use the platform's",
        ),
        ("http://127.0.0.1.example.edu/token", "not encrypted"),
        ("http://localhost.example.edu", "not encrypted"),
        ("canvas.example.edu/token", "not an address; expected one that begins with https://"),
        ("ftp://canvas.example.edu", "not an address"),
        ("https://", "not an address"),
        ("https://x:port/", "not an address"),
        ("https://a b", "without spaces"),
    ],
)
def test_an_address_that_others_could_listen_to_is_refused(url, said):
    with pytest.raises(LabError, match=said) as caught:
        lms.Platform(token_url=url)
    assert str(caught.value).startswith("--token-url")
    for good in ("https://canvas.example.edu/x?y=1", "http://127.0.0.1:8000/", "http://localhost/", "http://[::1]/"):
        lms.Platform(token_url=good)


def test_without_encryption_nothing_is_sent_even_if_the_platform_names_the_address(platform, lab):
    platform.columns.append({"id": "http://lms.example.edu/1", "label": "90_toy", "resourceId": "90_toy"})
    plans, result = push_all(lab, [row(ADA, 90), row(BOB, 80)])
    assert result.accepted == []
    assert [why.partition(" is not encrypted")[0] for _, why in result.failed] == [
        "http://lms.example.edu/1/scores",
        "not tried: http://lms.example.edu/1/scores",
    ]


# the roster


def roster(platform, root, known=()):
    return fetch_roster(lms.connect(root), known)


def test_learners_of_all_pages_are_the_roster_and_staff_is_named(platform, tmp_path):
    found = roster(platform, tmp_path)
    assert [(s.id, s.name, s.email, s.sis_id, s.lti_id) for s in found][:2] == [
        ("1001", "Ada Lovelace", "ada@u.edu", "1001", "u-ada"),
        ("bob@u.edu", "Bob Unger", "bob@u.edu", "", "u-bob"),
    ]
    assert len(found) == 4 and found.left_out == []
    assert found.notes == ["Pro Fessor has the role Instructor and is left out"]
    assert len([path for _, path in platform.seen if "memberships" in path]) == 3, "five members, two per page"


MEMBERS = {
    "an assistant": (
        {**member("u1", "A B"), "roles": [ROLE + "Instructor", ROLE[:-1] + "/Instructor#TeachingAssistant"]},
        "A B has the role Instructor and is left out",
    ),
    "an observer": (member("u1", "A B", role="Mentor"), "A B has the role Mentor and is left out"),
    "a student elsewhere": (
        {"user_id": "u1", "roles": ["http://purl.imsglobal.org/vocab/lis/v2/institution/person#Student"]},
        "user u1 has the role of nobody in this course and is left out",
    ),
    "the test user": (
        {**member("u1", "Student, Test"), "roles": [ROLE + "Learner", "http://purl.imsglobal.org/vocab/lti/system/person#TestUser"]},
        "Student, Test is the platform's test user and is left out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
def test_whoever_is_no_learner_is_left_out_and_named(platform, tmp_path, case):
    someone, said = MEMBERS[case]
    platform.members = [someone, PEOPLE[0]]
    found = roster(platform, tmp_path)
    assert [s.lti_id for s in found] == ["u-ada"] and found.notes == [said] and found.left_out == []


LEARNERS = {
    "Moodle's short role": ({"user_id": 7, "roles": ["Learner"], "email": "a@u.edu"}, "a@u.edu", ""),
    "a sub-role": ({"user_id": "7", "roles": [ROLE[:-1] + "/Learner#GuestLearner"], "email": "a@u"}, "a@u", ""),
    "without a status": ({"user_id": "7", "roles": [ROLE + "Learner"], "email": "a@u.edu"}, "a@u.edu", ""),
    "without email and name": (
        {"user_id": "7", "status": "Active", "roles": [ROLE + "Learner"], "email": None, "lis_person_sourcedid": ""},
        "7", "user 7 has neither number nor email address that can be an id, so the id is 7",
    ),
    "an address that nbgrader splits": (
        member("7", "A B", email="a+b@u.edu"), "7",
        "A B has neither number nor email address that can be an id, so the id is 7",
    ),
    "also staff": (
        {**member("7", "A B", email="a@u.edu"), "roles": [ROLE + "Learner", ROLE + "Instructor"]}, "a@u.edu",
        "A B has another role beside Learner and is entered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEARNERS)
def test_every_learner_gets_an_id(platform, tmp_path, case):
    someone, expected, said = LEARNERS[case]
    platform.members = [someone]
    found = roster(platform, tmp_path)
    assert [(s.id, s.lti_id) for s in found] == [(expected, str(someone["user_id"]))]
    assert found.notes == ([said] if said else [])


@pytest.mark.parametrize("status", ["Inactive", "Deleted"])
def test_who_left_the_course_is_dropped_until_they_return(platform, tmp_path, status):
    platform.members = [PEOPLE[0], {**PEOPLE[1], "status": status}]
    left = roster(platform, tmp_path)
    assert [student.dropped for student in left] == ["", f"{status.lower()} at the LMS"]
    platform.members = PEOPLE[:2]
    assert [student.dropped for student in roster(platform, tmp_path, left)] == ["", ""]


def test_another_roster_from_a_file_keeps_the_users_of_the_lms():
    newest = Roster([Student("Ada"), Student("eve")], [], [])
    assert with_dropped(newest, [Student("ada", lti_id="u-ada")]) == [
        Student("Ada", lti_id="u-ada"),
        Student("eve"),
    ]


def test_who_is_on_the_roster_keeps_id_and_section(platform, tmp_path):
    """Grades and folders are filed by id, which a CSV file may have given before."""
    known = [
        Student("ada", "Ada", "Byron", "", "7", "1001", "A"),
        Student("bob", email="BOB@u.edu"),
        Student("c3", lti_id="u-cyd"),
        Student("twin1", email="dee@u.edu"),
        Student("twin2", email="dee@u.edu"),
    ]
    found = {s.lti_id: s for s in roster(platform, tmp_path, known)}
    assert found["u-ada"] == Student("ada", "Ada", "Lovelace", "ada@u.edu", "7", "1001", "A", "", "u-ada")
    assert (found["u-bob"].id, found["u-cyd"].id) == ("bob", "c3")
    assert found["u-dee"].id == "dee@u.edu", "the address is two people's, so it says nothing"


def test_one_id_for_two_users_changes_nothing(platform, tmp_path):
    platform.members = [member("u1", "A B", lis_person_sourcedid="9"), member("u2", "C D", lis_person_sourcedid="9")]
    with pytest.raises(LabError, match="A B and C D have the same id '9' at the LMS; have one of them corrected there"):
        roster(platform, tmp_path)


def test_a_course_without_learners_and_a_list_without_end_are_refused(platform, tmp_path, monkeypatch):
    platform.members = PEOPLE[4:]
    with pytest.raises(LabError, match="names 1 members and no active learner; check --memberships-url"):
        roster(platform, tmp_path)
    link = {"Link": f"<{platform.values['memberships_url']}?page=Bookmark0>;rel=next"}

    def endless(items, *_):
        assert len(platform.seen) < 30, "somebody reads for ever"
        return items[:1], link

    monkeypatch.setattr(platform, "_page", endless)
    with pytest.raises(LabError, match="names the page .* twice; its list has no end"):
        roster(platform, tmp_path)


# scores


def test_scores_arrive_as_the_specification_wants_them(platform, lab):
    when = datetime(2030, 1, 31, 22, 58, 59)
    late = row(ADA, 76.5, handed_in=when, penalty=8.5, parts={"mean_test": 40.0, "rescale_test_values": 45.0})
    plans, result = push_all(lab, [late], comments=True)
    assert result.accepted == ["ada"]
    (column,) = platform.columns
    assert (column["label"], column["resourceId"], column["scoreMaximum"]) == ("90_toy", "90_toy", 100.0)
    ((key, (score,)),) = platform.scores.items()
    now = datetime.now(UTC)
    assert now - timedelta(seconds=60) < datetime.fromisoformat(score.pop("timestamp")) <= now
    assert key == (column["id"], "u-ada") and score == {
        "userId": "u-ada",
        "scoreGiven": 76.5,
        "scoreMaximum": 100.0,
        "activityProgress": "Completed",
        "gradingProgress": "FullyGraded",
        "comment": "mean 40/40, rescale 45/60, late -8.5",
        "submission": {"submittedAt": "2030-01-31T22:58:59.000+00:00"},
        "https://canvas.instructure.com/lti/submission": {"new_submission": False},
    }


def test_the_column_is_found_on_a_later_page_and_made_once(platform, lab):
    for name in ("00_start", "01_roofline", "02_rows", "90_toy", "03_tiles"):
        platform.columns.append(
            {"id": f"{platform.url}/Course/7/lineitems/{len(platform.columns)}/lineitem?type_id=3", "label": name}
            | {"resourceId": name, "scoreMaximum": 10.0}
        )
    plans, result = push_all(lab, [row(ADA, 90)])
    assert len(platform.columns) == 5 and platform.held() == {"u-ada": 90.0}
    assert result.note == "the column counts 10 points there: scores of 100 are scaled by the LMS"


def test_the_same_score_is_sent_once_and_a_changed_one_with_a_later_timestamp(platform, lab):
    for scores, sent in (((90, 80), 2), ((90, 80), 0), ((90, 81), 1), ((90, 80), 1)):
        _, result = push_all(lab, [row(ADA, scores[0]), row(BOB, scores[1])])
        assert (len(result.accepted), result.failed) == (sent, [])
    times = [score["timestamp"] for score in platform.scores[platform.columns[0]["id"], "u-bob"]]
    assert len(times) == 3 and times == sorted(set(times))
    _, result = push_all(lab, [row(ADA, 90)], again=True)
    assert result.accepted == ["ada"]


def test_timestamps_grow_although_the_clock_went_back(platform, lab):
    push_all(lab, [row(ADA, 90)])
    journal = lab.root / "class/lms_pushed.jsonl"
    year = str(datetime.now(UTC).year)
    journal.write_text(journal.read_text().replace(f'"timestamp": "{year}', '"timestamp": "2099'))
    (sent,) = platform.scores.values()
    sent[0]["timestamp"] = sent[0]["timestamp"].replace(year, "2099")
    _, result = push_all(lab, [row(ADA, 91)])
    assert result.failed == [] and platform.held() == {"u-ada": 91.0}


def test_a_deleted_column_is_made_again_with_all_scores(platform, lab):
    push_all(lab, [row(ADA, 90), row(BOB, 80)])
    platform.columns[0] = {**platform.columns[0], "resourceId": "another", "label": "another"}
    _, result = push_all(lab, [row(ADA, 90), row(BOB, 80)])
    assert result.accepted == ["ada", "bob"] and platform.held() == {"u-ada": 90.0, "u-bob": 80.0}


def test_without_scores_no_column_is_made(platform, lab):
    for rows in ([], [row(ADA, 0.0, "missing")]):
        assert push_all(lab, rows)[1].accepted == [] and platform.seen == []


def test_only_scores_of_the_export_are_pushed_and_nobody_is_forgotten(platform, lab):
    rows = [
        row(ADA, 90),
        row(BOB, 0.0, "missing"),
        row(CYD, None, "ungraded", reason="refused: cut off", refused=True),
        row(Student("eve"), 70),
        row(DEE, None, "dropped", reason="inactive at the LMS; 50 of 100 points stay in the gradebook"),
    ]
    plans, _ = push_all(lab, rows)
    assert [(p.row.student.id, p.step, p.why) for p in plans] == [
        ("ada", "push", ""),
        ("bob", "none", "missing: nothing was handed in"),
        ("cyd", "none", "ungraded: refused: cut off"),
        ("eve", "none", "no user of the LMS is known for this student"),
    ]
    assert platform.held() == {"u-ada": 90.0}
    push_all(lab, rows, missing_as_zero=True)
    assert platform.held() == {"u-ada": 90.0, "u-bob": 0.0}
    assert platform.scores[platform.columns[0]["id"], "u-bob"][0]["activityProgress"] == "Initialized"


# failures

ROWS = [row(ADA, 90), row(BOB, 80), row(CYD, 70), row(DEE, 60)]
FAULTS = {
    "an expired token": (["401"], [], ""),
    "too many requests, briefly": (["429"], [], ""),
    "an unknown user": (["404"], ["ada"], "HTTP 404: refused with 404; is this student still in the course?"),
    "an older timestamp": (["409"], ["ada"], "HTTP 409: .*; the LMS has a later score: is this machine's clock right?"),
    "not a student": (["", "422"], ["bob"], "HTTP 422: refused with 422"),
    "every student refused": (["404"] * 4, ["ada", "bob", "cyd", "dee"], "HTTP 404"),
    "an error of the platform": (["", "", "500"], ["cyd"], "HTTP 500: refused with 500"),
    "a lost request": (["", "lost before"], ["bob"], "the connection was lost"),
    "a lost answer": (["lost after"], ["ada"], "the connection was lost"),
    "a page to log in": (["html"], ["ada"], "the answer is not JSON"),
    "too many requests, for long": (["", "429 for long", "", ""], ["bob"], "HTTP 429: .*wait for 3600 s"),
    "a platform that is down": (["503"] * 3, ["ada", "bob", "cyd", "dee"], "HTTP 503"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_what_went_wrong_is_named_and_the_same_command_completes_it(platform, lab, case):
    faults, names, said = FAULTS[case]
    platform.faults.extend(faults)
    _, result = push_all(lab, ROWS)
    assert [student for student, _ in result.failed] == names
    if names:
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(result.failed[0][1])
    platform.faults.clear()
    _, second = push_all(lab, ROWS)
    assert second.accepted == names and second.failed == []
    assert platform.held() == {"u-ada": 90.0, "u-bob": 80.0, "u-cyd": 70.0, "u-dee": 60.0}


def test_a_platform_that_is_down_is_left_alone_after_three_failures(platform, lab):
    platform.faults.extend(["500"] * 3)
    _, result = push_all(lab, ROWS)
    assert result.failed[3] == ("dee", "not tried: 3 failures in a row, the last: HTTP 500: refused with 500")
    assert len([path for _, path in platform.seen if "scores" in path]) == 3
    platform.faults.extend(["404"] * 3)
    _, result = push_all(lab, ROWS)
    assert result.accepted == ["dee"], "three students who are unknown say nothing about the platform"


def test_a_push_that_was_killed_between_sending_and_the_answer_goes_on(platform, lab):
    """The platform may or may not have the score; it is sent again, later than before."""
    push_all(lab, [row(ADA, 90)])
    journal = lab.root / "class/lms_pushed.jsonl"
    sent, accepted = journal.read_text().splitlines()
    for left in (sent[:50], sent + "\n", sent + "\n" + accepted[:40], sent + "\n" + accepted):
        journal.write_text(left)
        _, result = push_all(lab, [row(ADA, 90)])
        assert result.accepted == ["ada"] and platform.held() == {"u-ada": 90.0}
        with opened_journal(lab.root) as entries:
            assert entries.has(platform.columns[0]["id"], "u-ada", (90.0, 100.0, ""))


def test_a_score_that_went_back_after_a_lost_answer_is_sent(platform, lab):
    """60, then 70 whose answer is lost, then 60 again: the platform holds 70."""
    push_all(lab, [row(ADA, 60)])
    platform.faults.append("lost after")
    push_all(lab, [row(ADA, 70)])
    assert platform.held() == {"u-ada": 70.0}
    push_all(lab, [row(ADA, 60)])
    assert platform.held() == {"u-ada": 60.0}


def test_a_damaged_journal_and_a_second_push_are_refused(platform, lab):
    push_all(lab, [row(ADA, 90)])
    journal = lab.root / "class/lms_pushed.jsonl"
    with opened_journal(lab.root), pytest.raises(LabError, match="another `threeloops class lms push` is using"):
        push_all(lab, [row(ADA, 90)])
    journal.write_text("rubbish\n" + journal.read_text())
    with pytest.raises(
        LabError, match="line 1 is damaged .* delete the file, and the next push sends every score again"
    ):
        push_all(lab, [row(ADA, 90)])


BAD = {
    "another client id": ({"client_id": "9"}, r"client id 9 or its key \(invalid_client: .*\); compare --client-id"),
    "a token URL of nobody": ({"token_url": "http://127.0.0.1:9/"}, "cannot be reached .*; check --token-url"),
    "a token URL without tokens": (
        {"token_url": "lineitems"}, "the token URL .* gives no token .*; compare --token-url with the LMS",
    ),
    "a web page for a token URL": ({"token_url": "/login.html"}, "not answer in JSON; is --token-url the address"),
    "another audience": ({"audience": "https://sso.example.edu"}, "refuses the client id .*[Aa]udience"),
    "line items elsewhere": (
        {"lineitems_url": "/nowhere"}, "reading the columns at .*/nowhere failed .HTTP 404.*; check --lineitems-url",
    ),
    "a web page for line items": ({"lineitems_url": "/login.html"}, "the answer is not JSON; check --lineitems-url"),
    "members for line items": ({"lineitems_url": "memberships"}, "reading the columns at .* failed .HTTP 403"),
    "a redirect": ({"lineitems_url": "/moved"}, "sends us on to .*; enter the final address"),
    "line items of nobody": ({"lineitems_url": "http://127.0.0.1:9/"}, "failed .*lost.*; check --lineitems-url"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_gets_one_sentence_with_the_next_step(platform, lab, keys, case):
    values, said = BAD[case]
    values = {name: platform.url + value if value.startswith("/") else value for name, value in values.items()}
    values = {name: platform.values.get(value + "_url", value) for name, value in values.items()}
    set_up(platform, lab.root, keys, **values)
    with pytest.raises(LabError, match=said) as caught:
        push_all(lab, ROWS)
    assert "\n" not in str(caught.value) and platform.scores == {}


def test_another_key_and_a_scope_that_is_not_enabled(platform, lab, tmp_path):
    platform.scopes.remove("https://purl.imsglobal.org/spec/lti-ags/scope/score")
    with pytest.raises(
        LabError, match="no token for the scopes lineitem, score .invalid_scope: 400.; have them enabled"
    ):
        push_all(lab, ROWS)
    platform.scopes = {NRPS}
    platform.tokens.clear()
    assert len(roster(platform, lab.root)) == 4
    (lab.root / "class/lms_key.pem").unlink()
    lms.make_key(lab.root)
    with pytest.raises(LabError, match="the public key there with the one that `threeloops class lms init` prints"):
        push_all(lab, ROWS)
    with pytest.raises(LabError, match="--client-id, --token-url, --lineitems-url, --memberships-url missing"):
        lms.make_key(tmp_path / "new")
        lms.connect(tmp_path / "new")


def test_a_platform_that_needs_another_audience_gets_it(platform, lab, keys):
    platform.audience = "https://sso.example.edu/login/oauth2/token"
    set_up(platform, lab.root, keys, audience=platform.audience)
    _, result = push_all(lab, ROWS)
    assert len(result.accepted) == 4


def test_a_netrc_entry_does_not_replace_the_token(platform, lab, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    _, result = push_all(lab, ROWS)
    assert len(result.accepted) == 4


KINDS = ["", "401", "403", "404", "409", "422", "429", "429 for long", "500", "html", "lost before", "lost after"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 33.333, 50.0, 100.0])),  # a regrade
        st.lists(st.sampled_from(KINDS), max_size=8),  # a push with these faults
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_after_any_failures_and_repeats_the_platforms_scores_equal_the_export(keys, tmp_path_factory, steps):
    students = (ADA, BOB, CYD, DEE)
    scores = dict.fromkeys(students, 10.0)
    root = tmp_path_factory.mktemp("course")
    lab = make_course(root)

    def export():
        return {student.lti_id: float(f"{score:.2f}") for student, score in scores.items()}

    with Platform(PEOPLE) as played:
        set_up(played, root, keys)
        connector = lms.connect(root)
        for step in [*steps, [], []]:
            if isinstance(step, tuple):
                scores[students[step[0]]] = step[1]
                continue
            played.faults = type(played.faults)(step)
            plans, result = push_all(lab, [row(s, score) for s, score in scores.items()], connector)
            same = [plan.row.student.id for plan in plans if plan.step == "same"]
            told = [*same, *result.accepted, *(student for student, _ in result.failed)]
            assert sorted(told) == ["ada", "bob", "cyd", "dee"], "everybody is named once"
            for student in students:
                if student.id in (*same, *result.accepted):
                    assert played.held()[student.lti_id] == export()[student.lti_id], "what is said is true"
        assert played.held() == export()
        assert (result.accepted, result.failed) == ([], []), "the second push in a row sends nothing"
        assert len(played.columns) == 1
        for sent in played.scores.values():
            times = [score["timestamp"] for score in sent]
            assert times == sorted(set(times))


# the commands


def test_a_term_from_the_key_to_the_grades(tmp_path):
    lab = make_class_course(tmp_path)
    root = lab.root
    said = threeloops(root, "class", "lms", "push", "90", code=2)
    assert "no roster at" in said
    said = threeloops(root, "class", "init", "--from-lms", code=2)
    assert "there is no key at" in said
    said = threeloops(root, "class", "lms", "init")
    assert "--client-id (missing)" in said and "`threeloops class lms init --client-id … --token-url …" in said
    assert "BEGIN PUBLIC KEY" in said and "PRIVATE" not in said
    jwk = json.loads(said.partition("public key (JWK): ")[2].splitlines()[0])
    assert "expected one roster" in threeloops(root, "class", "init", code=2)
    assert "not encrypted" in threeloops(root, "class", "lms", "init", "--token-url", "http://lms.example.edu", code=2)
    with Platform([*PEOPLE, member("u-old", "Old One", status="Inactive")]) as played:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in played.values.items()]
        said = threeloops(root, "class", "lms", "init", *options, code=2)
        assert f"refuses the client id {CLIENT} or its key" in said, "the values are entered, the key is not yet there"
        played.jwk = jwk
        assert "6 members, 0 columns of this tool" in threeloops(root, "class", "lms", "init")
        said = threeloops(root, "class", "init", "--from-lms", "--due", "90=2030-01-31", "--late-percent", "10")
        assert "4 students are in the gradebook" in said
        assert "dropped: u-old: inactive at the LMS; work and points stay" in said
        threeloops(root, "class", "release", "90")
        with gradebook(root) as book:
            assert {s.id for s in book.students} == {s.id for s in saved_roster(root / "class/roster.json")}
            for student, points in (("1001", 40.0), ("bob@u.edu", 15.0)):
                submission = book.add_submission(lab.slug, student, timestamp=datetime(2030, 2, 1, 12))
                for grade in submission.notebooks[0].grades:
                    grade.auto_score = points if grade.name == "mean_test" else 0.0
            book.db.commit()
        said = threeloops(root, "class", "lms", "push", "90", "--dry-run")
        assert [line.split()[:4] for line in said.splitlines()[1:3]] == [
            ["1001", "u-ada", "36", "100"],
            ["bob@u.edu", "u-bob", "13.5", "100"],
        ]
        assert played.columns == [], "nothing was sent"
        played.faults.append("404")
        said = threeloops(root, "class", "lms", "push", "90", code=1)
        assert (
            "90_toy at the LMS: 1 scores pushed, 0 were there already, 1 not pushed, 2 students without a score" in said
        )
        assert "pushed: bob@u.edu" in said and "not pushed: 1001: HTTP 404" in said
        assert "missing, so without a score at the LMS (--missing-as-zero pushes 0): cyd@u.edu, dee@u.edu" in said
        assert "90_toy: 4 on the roster = 2 graded + 0 ungraded + 2 missing" in said
        threeloops(root, "class", "lms", "push", "90", "--missing-as-zero")
        assert played.held() == {"u-ada": 36.0, "u-bob": 13.5, "u-cyd": 0.0, "u-dee": 0.0}
        threeloops(root, "class", "export", "90")
        table = (root / "class/90_toy_moodle.csv").read_text()
        assert all(f",{score:g}," in table for score in played.held().values())
