import contextlib
import errno
import fcntl
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from threeloops.product.service.models import Registry, RegistryError


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


@pytest.fixture
def model(tmp_path):
    """A function that makes the folder of a model."""

    def make(weights="0123456789", name="model"):
        folder = tmp_path / name
        (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer" / "vocabulary").write_text("")
        (folder / "weights").write_text(weights)
        return folder

    return make


def unfinished(registry):
    return [path.name for path in (registry.folder / "versions").iterdir() if path.name not in registry.names()]


def test_a_published_version_is_a_copy_that_nobody_can_change_from_outside(registry, model):
    source = model()
    version = registry.publish("v1", source)
    (source / "weights").write_text("changed")
    assert (version.folder / "weights").read_text() == "0123456789"
    assert (version.folder / "tokenizer" / "vocabulary").exists()
    assert registry.version("v1") == version
    assert registry.names() == ["v1"]
    assert unfinished(registry) == []


def test_links_are_followed_as_in_a_download_cache(registry, model, tmp_path):
    source = model()
    (source / "weights").rename(tmp_path / "blob")
    (source / "weights").symlink_to(tmp_path / "blob")
    version = registry.publish("v1", source)
    assert not (version.folder / "weights").is_symlink()
    assert (version.folder / "weights").read_text() == "0123456789"


def test_publishing_does_not_activate(registry, model):
    registry.publish("v1", model())
    with pytest.raises(RegistryError, match=r"no version is active: activate one \(v1\)"):
        registry.current()


def test_rollback_walks_back_and_the_history_says_so(registry, model):
    for name in "abc":
        registry.publish(name, model(weights=name))
        registry.activate(name)
    registry.activate("c")  # already: nothing happens
    assert registry.rollback().name == "b"
    assert registry.current().name == "b"
    assert registry.rollback().name == "a"
    with pytest.raises(RegistryError, match="nothing to roll back to"):
        registry.rollback()
    registry.activate("c")
    assert registry.rollback().name == registry.current().name == "a"
    steps = [(event["what"], event["version"]) for event in registry.history()]
    activated = [("activate", name) for name in "abc"]
    assert steps == [*activated, ("rollback", "b"), ("rollback", "a"), ("activate", "c"), ("rollback", "a")]


def test_another_process_sees_the_same(registry, model):
    registry.publish("v1", model())
    registry.activate("v1")
    assert Registry(registry.folder).current() == registry.current()


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (lose, "files/weights", "version 'v2': weights is missing: only half of it is there"),
        (cut, "files/weights", "version 'v2': weights has 9 of 10 bytes"),
        (flip, "files/weights", "version 'v2': weights differs from what was published"),
        (lose, "files/tokenizer/vocabulary", "version 'v2': tokenizer/vocabulary is missing"),
        (lose, "manifest.json", "version 'v2': it has no manifest.json: only half of it is there"),
        (halve, "manifest.json", "version 'v2': its manifest.json cannot be read"),
        (flip, "manifest.json", "version 'v2': its manifest.json cannot be read"),
    ],
)
def test_half_a_model_is_refused_by_name_and_the_current_one_stays(registry, model, damage, file, message):
    registry.publish("v1", model())
    registry.activate("v1")
    registry.publish("v2", model())
    damage(registry.folder / "versions" / "v2" / file)
    with pytest.raises(RegistryError, match=message):
        registry.activate("v2")
    assert registry.current().name == "v1"


def test_a_file_that_was_slipped_in_is_refused(registry, model):
    version = registry.publish("v1", model())
    (version.folder / "code.py").touch()
    with pytest.raises(RegistryError, match=r"code\.py is not in its manifest"):
        registry.version("v1")


def test_the_current_version_is_checked_too(registry, model):
    registry.publish("v1", model())
    flip(registry.activate("v1").folder / "weights")
    with pytest.raises(RegistryError, match="weights differs from what was published"):
        registry.current()


def test_no_rollback_to_a_damaged_version(registry, model):
    for name in "ab":
        registry.publish(name, model())
        registry.activate(name)
    flip(registry.folder / "versions" / "a" / "files" / "weights")
    with pytest.raises(RegistryError, match="version 'a'"):
        registry.rollback()
    assert registry.current().name == "b"


def test_a_damaged_version_is_mended_by_publishing_it_again(registry, model):
    flip(registry.publish("v1", model()).folder / "weights")
    assert registry.publish("v1", model()) == registry.version("v1")
    registry.publish("v2", model())
    assert unfinished(registry) == []


def test_a_name_is_taken_for_other_files_and_free_for_the_same(registry, model):
    first = registry.publish("v1", model())
    assert registry.publish("v1", model()) == first
    with pytest.raises(RegistryError, match="'v1' is there already, with other files: use another name"):
        registry.publish("v1", model(weights="x"))
    assert registry.version("v1") == first
    assert unfinished(registry) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp", ".hidden", "a b", "x" * 65, None])
def test_a_name_that_leads_elsewhere_is_refused(registry, model, name):
    for act in (registry.version, registry.activate, lambda name: registry.publish(name, model())):
        with pytest.raises(RegistryError, match="expected up to 64 letters"):
            act(name)


def test_what_is_no_model_is_not_published(registry, tmp_path):
    with pytest.raises(RegistryError, match="expected the folder of a model"):
        registry.publish("v1", tmp_path / "nowhere")
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    with pytest.raises(RegistryError, match="the folder holds no file"):
        registry.publish("v1", tmp_path / "empty")
    os.mkfifo(tmp_path / "empty" / "pipe")
    with pytest.raises(RegistryError, match="named pipe"):
        registry.publish("v1", tmp_path / "empty")
    assert (registry.names(), unfinished(registry)) == ([], [])


def test_a_history_that_cannot_be_read_is_named(registry):
    (registry.folder / "history.json").write_text("[{}]")
    with pytest.raises(RegistryError, match=r"history\.json cannot be read"):
        registry.current()


def test_many_publishers_at_once(registry, model):
    """Of those with the same name and other files one wins; activations at the same time lose none."""
    sources = [model(weights=str(n), name=f"model{n}") for n in range(8)]

    def work(n):
        own = Registry(registry.folder)
        own.publish(f"v{n}", sources[n])
        own.activate(f"v{n}")
        try:
            return own.publish("same", sources[n])
        except RegistryError:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [n for n, version in enumerate(pool.map(work, range(8))) if version is not None]
    assert len(won) == 1
    assert (registry.version("same").folder / "weights").read_text() == str(won[0])
    assert {event["version"] for event in registry.history()} == {f"v{n}" for n in range(8)}
    assert len(registry.history()) == 8
    assert unfinished(registry) == []


def test_who_holds_the_lock_is_named_and_not_waited_for_for_ever(registry, model):
    registry.activate(registry.publish("v1", model()).name)
    registry.activate(registry.publish("v2", model(weights="2")).name)
    with registry._locked():
        late = Registry(registry.folder, lock_seconds=0.02)
        for act in (late.rollback, lambda: late.activate("v1"), lambda: late.publish("v3", model())):
            with pytest.raises(RegistryError, match=rf"lock is held by process {os.getpid()} for 0.02 s .*: try again"):
                act()
        assert late.current().name == "v2", "looking needs no lock"
    assert registry.rollback().name == "v1"


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("break_it", "act"),
    [
        (lambda folder: (folder / "history.json").mkdir(), lambda it, source: it.current()),
        (lambda folder: (folder / "history.json").mkdir(), lambda it, source: it.activate("v1")),
        (lambda folder: (folder / "history.json").write_text(DEEP), lambda it, source: it.history()),
        (lambda folder: (folder / "history.json").write_text('[{"what": "activate", "version": 1, "at": 1}]'),
         lambda it, source: it.current()),
        (lambda folder: (folder / "history.json").write_text('[{"what": "activate", "version": "v1", "at": NaN}]'),
         lambda it, source: it.history()),
        (lambda folder: (folder / "versions" / "v1" / "manifest.json").write_text(DEEP),
         lambda it, source: it.version("v1")),
        (lambda folder: shutil.rmtree(folder / "versions"), lambda it, source: it.names()),
        (lambda folder: shutil.rmtree(folder / "versions"), lambda it, source: it.publish("v2", source)),
        (lambda folder: (folder / "lock").unlink() or (folder / "lock").mkdir(), lambda it, source: it.activate("v1")),
        (lambda folder: None, lambda it, source: it.publish("v2", Path("x" * 5000))),
        (lambda folder: None, lambda it, source: it.publish("v2", Path("/".join(["x" * 200] * 30)))),
        (lambda folder: None, lambda it, source: it.publish("v2", Path("a\0b"))),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_as_it_should_be_is_an_error_of_the_registry(registry, model, break_it, act):
    registry.publish("v1", model())
    break_it(registry.folder)
    with pytest.raises(RegistryError) as caught:
        act(registry, model())
    assert len(str(caught.value)) < 1000


def test_a_registry_that_cannot_be_made_is_an_error_of_the_registry(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match="file"):
        Registry(tmp_path / "file" / "registry")


@contextlib.contextmanager
def disk_that_refuses(number):
    """The call with this number that opens, makes, renames or flushes something fails; yields whether one did."""
    calls, failed = itertools.count(), []

    def refusing(function):
        def call(*args, **more):
            if next(calls) == number:
                failed.append(function.__name__)
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for module, names in (
            (os, "open mkdir rename replace fsync scandir stat write"),
            (io, "open"),
            (fcntl, "flock"),
        ):
            for name in names.split():
                patch.setattr(module, name, refusing(getattr(module, name)))
        yield failed


@pytest.mark.parametrize("what", ["publish", "publish again", "mend", "activate", "rollback"])
def test_whatever_the_disk_refuses_nothing_is_half_there(registry, model, what):
    source, other = model(weights="a"), model(weights="b", name="other")
    for name, folder in (("a", source), ("b", other)):
        registry.activate(registry.publish(name, folder).name)
    history = registry.history()
    refusals = 0
    for number in itertools.count():
        if what == "mend":
            flip(registry.folder / "versions" / "b" / "files" / "weights")
        with disk_that_refuses(number) as failed:
            try:
                match what:
                    case "publish":
                        registry.publish("c", source)
                    case "publish again" | "mend":
                        registry.publish("b", other)
                    case "activate":
                        registry.activate("a")
                    case "rollback":
                        registry.rollback()
            except RegistryError as error:
                refusals += 1
                # From Python 3.14 on, `Path.is_file` says no where `stat` fails.
                assert "No space left" in str(error) or failed == ["stat"]
        if not failed:
            break
        for name in registry.names():
            assert what == "mend" or registry.version(name).name == name
        assert set("ab") <= set(registry.names())
        if what in ("activate", "rollback"):
            assert registry.history() in (history, registry.history()[: len(history) + 1])
        if registry.history() != history:
            (registry.folder / "history.json").write_text(json.dumps(history))
        if "c" in registry.names():
            shutil.rmtree(registry.folder / "versions" / "c")
    assert refusals >= 3
    registry.publish("d", source)  # removes what could not be removed
    assert unfinished(registry) == []


def test_no_version_has_the_name_of_a_command(registry, model):
    for name in ("rollback", "activate"):
        with pytest.raises(RegistryError, match=f"'{name}' is a command of the service"):
            registry.publish(name, model())


def test_a_folder_is_not_published_into_itself(registry, model, tmp_path):
    registry.publish("v1", model())
    (tmp_path / "link").symlink_to(registry.folder)
    for folder in (registry.folder, tmp_path, registry.folder / "versions", tmp_path / "link", Path("/")):
        with pytest.raises(RegistryError, match="the registry lies in this folder"):
            registry.publish("v2", folder)
    assert registry.publish("v2", registry.version("v1").folder).digest == registry.version("v1").digest


PUBLISHER = """
import sys
from pathlib import Path
from threeloops.product.service.models import Registry, registry
registry._flush = lambda place: (print("copied", flush=True), sys.stdin.read())
Registry(Path(sys.argv[1])).publish("v1", Path(sys.argv[2]))
"""


def test_who_is_killed_while_publishing_leaves_nothing_and_who_lives_is_left_alone(registry, model):
    source = model()
    command = [sys.executable, "-c", PUBLISHER, str(registry.folder), str(source)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as dead, subprocess.Popen(command, **pipes) as alive:
        assert [dead.stdout.readline(), alive.stdout.readline()] == ["copied\n", "copied\n"]
        dead.kill()
        dead.wait()
        assert registry.names() == []
        assert len(unfinished(registry)) == 2
        registry.publish("v2", source)
        assert len(unfinished(registry)) == 1
        alive.communicate(timeout=60)
    assert alive.returncode == 0
    assert registry.names() == ["v1", "v2"]
    assert registry.version("v1").digest == registry.version("v2").digest


def test_the_manifest_is_plain(registry, model):
    registry.publish("v1", model())
    manifest = json.loads((registry.folder / "versions" / "v1" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["config.json", "tokenizer/vocabulary", "weights"]
    assert manifest["files"]["weights"]["bytes"] == 10
