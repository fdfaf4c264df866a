import hashlib
import logging
import os

import pytest
from threeloops.product.service.admission import ClientLimits, Keys, KeysFileError, Refused


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


def replace(path, text):
    """As an editor does: another file under the same name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def refusal(keys, authorization):
    with pytest.raises(Refused) as found:
        keys.client(authorization)
    assert (found.value.status, found.value.code, found.value.retry_after) == (401, "invalid_api_key", None)
    return found.value


def test_a_new_key_opens_the_door_that_its_entry_describes(path):
    (alice, entry), (bob, other) = Keys.new("alice"), Keys.new("bob")
    path.write_text(entry + other + "admin = true\nlimits = { requests_per_second = 5, concurrent = 2 }\n")
    keys = Keys.load(path)
    assert keys.client(f"Bearer {alice}").name == "alice"
    assert keys.client(f"bearer  {bob} ").limits == ClientLimits(requests_per_second=5, concurrent=2)
    assert (keys.client(f"Bearer {alice}").admin, keys.client(f"Bearer {bob}").admin) == (False, True)


def test_the_file_and_every_repr_hold_no_key(path):
    key, entry = Keys.new("alice")
    path.write_text(entry)
    keys = Keys.load(path)
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert digest in entry
    for text in (entry, repr(keys), repr(keys.client(f"Bearer {key}")), str(refusal(keys, f"Bearer {key}x"))):
        assert key not in text
    assert digest not in repr(keys)


def test_keys_are_long_and_never_the_same():
    keys = {Keys.new("a")[0] for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) >= 43 for key in keys)


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Basic YTpi", "KEY", "Bearer KEY x", "Bearer " + "k" * 10**6, "Bearer \udcff\x00é"],
    ids=lambda text: repr(text)[:20],
)
def test_anything_but_a_known_key_is_refused(path, authorization):
    key, entry = Keys.new("alice")
    path.write_text(entry)
    refusal(Keys.load(path), authorization and authorization.replace("KEY", key))


def test_every_entry_is_compared_whether_it_is_the_first_or_none(path, monkeypatch):
    made = [Keys.new(f"client{n}") for n in range(5)]
    path.write_text("".join(entry for _, entry in made))
    keys, compared = Keys.load(path), []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(a) or a == b)
    keys.client(f"Bearer {made[0][0]}")
    refusal(keys, "Bearer wrong")
    assert len(compared) == 10
    assert len(set(compared)) == 5


def test_without_a_file_everybody_is_anonymous_and_nobody_an_admin():
    client = Keys.open().client(None)
    assert (client.name, client.admin, client.limits) == ("anonymous", False, ClientLimits())
    assert Keys.open().client("Bearer whatever") == client


def test_a_changed_file_is_read_again(path):
    (old, entry), (new, other) = Keys.new("alice"), Keys.new("alice")
    path.write_text(entry)
    keys = Keys.load(path)
    replace(path, other)
    assert keys.client(f"Bearer {new}").name == "alice"
    refusal(keys, f"Bearer {old}")


def test_a_change_for_the_worse_leaves_the_clients_as_they_were_and_is_logged_once(path, caplog):
    key, entry = Keys.new("alice")
    path.write_text(entry)
    keys = Keys.load(path)
    replace(path, "[[keys]\n")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert keys.client(f"Bearer {key}").name == "alice"
    assert len(caplog.records) == 1
    assert "line 1" in keys.problem
    path.unlink()
    assert keys.client(f"Bearer {key}").name == "alice"
    assert "cannot be read" in keys.problem
    replace(path, entry)
    assert keys.client(f"Bearer {key}").name == "alice"
    assert keys.problem is None


HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: expected at least one table \[\[keys\]\]"),
        ("keys = 3", r"line 1: expected at least one table"),
        ("[[keys]]\nname = =\n", r"not TOML: .*line 2"),
        (f'[[keys]]\nsha256 = "{HASH}"\n', r"line 1, keys\[0\]: name = None"),
        (f'[[keys]]\nname = "a b"\nsha256 = "{HASH}"\n', r"line 2, keys\[0\]: name = 'a b': expected up to 64"),
        ('[[keys]]\nname = "a"\n', r"line 1, keys\[0\]: sha256: expected the 64 hexadecimal digits .* got NoneType"),
        (
            f'# c\n[[keys]]\nname = "a"\nsha256 = "{HASH}"\nkey = 1\n',
            r"line 5, keys\[0\]: no field 'key': expected name",
        ),
        (f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nadmin = "no"\n', r"line 4, keys\[0\]: admin = 'no': expected true"),
        (f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nlimits = 3\n', r"line 4, keys\[0\]: limits = 3: expected a table"),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\n[[keys]]\nname = "a"\nsha256 = "{"1" * 64}"\n',
            r"line 5, keys\[1\]: name = 'a': another entry has it",
        ),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\n\n[[keys]]\nname = "b"\nsha256 = "{HASH}"\n',
            r"line 7, keys\[1\]: sha256: another entry has the same key",
        ),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\n[keys.limits]\nrequests_per_second = -1\n',
            r"line 4, keys\[0\]: requests_per_second = -1: expected a number, at least 0",
        ),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nlimits = {{ tokens_per_second = nan }}\n',
            r"line 4, keys\[0\]: tokens_per_second = nan",
        ),
        (
            f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nlimits = {{ per_minute = 3 }}\n',
            r"line 4, keys\[0\]: limits has no field 'per_minute': expected requests_per_second",
        ),
    ],
)
def test_a_bad_file_is_refused_with_line_and_field(path, text, message):
    path.write_text(text)
    with pytest.raises(KeysFileError, match=message):
        Keys.load(path)


def test_a_key_that_was_put_in_place_of_its_hash_is_not_quoted(path):
    key, _ = Keys.new("a")
    path.write_text(f'[[keys]]\nname = "a"\nsha256 = "{key}"\n')
    with pytest.raises(KeysFileError, match="got 46 characters") as error:
        Keys.load(path)
    assert key not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("name", ["", "a b", "../a", 'a"\n', "x" * 65, None])
def test_a_name_that_would_not_stand_in_a_log_is_refused(name):
    with pytest.raises(ValueError, match="name = "):
        Keys.new(name)


def test_a_file_that_is_no_text_or_not_there_is_refused(path):
    path.write_bytes(b"ab\xff")
    with pytest.raises(KeysFileError, match="byte 2 is not UTF-8"):
        Keys.load(path)
    path.unlink()
    with pytest.raises(KeysFileError, match="cannot be read: No such file"):
        Keys.load(path)
