"""Settings: three sources, one wins, and every mistake is one sentence that names the field."""

from pathlib import Path

import pytest
from threeloops.product.service.settings import Settings, SettingsError, load_settings


def written(tmp_path, text):
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_without_anything_the_small_model_is_served_to_this_machine_only():
    settings = load_settings(environment={})
    assert (settings.host, settings.port, settings.model, settings.name) == ("127.0.0.1", 8000, "tiny", "tiny")
    assert settings == Settings()


def test_the_environment_beats_the_file_and_the_command_line_beats_both(tmp_path):
    file = written(tmp_path, 'port = 1\nblocks = 2\nmax_queued = 3\nkeys_file = "keys.toml"\nrequest_seconds = 4\n')
    environment = {
        "THREELOOPS_SERVE_BLOCKS": "20",
        "THREELOOPS_SERVE_MAX_QUEUED": "30",
        "HOME": "/",
        "THREELOOPS_X": "1",
    }
    settings = load_settings(file, environment, {"max_queued": 300})
    assert (settings.port, settings.blocks, settings.max_queued) == (1, 20, 300)
    assert settings.keys_file == Path("keys.toml")
    assert settings.request_seconds == 4.0


def test_a_folder_is_served_under_its_last_word_or_the_name_that_was_given():
    assert load_settings(environment={}, given={"model": "some/where/model"}).name == "model"
    assert (
        load_settings(environment={}, given={"model": "some/where/model", "served_model_name": "ours"}).name == "ours"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "serve.toml: there is no setting 'prot'; expected one of host, port"),
        ('port = "8000"', "serve.toml: port = '8000': expected it to be a valid integer"),
        ("port = 65536", "serve.toml: port = 65536: expected it to be less than or equal to 65535"),
        ("port = true", "serve.toml: port = True: expected it to be a valid integer"),
        ("blocks = 0", "serve.toml: blocks = 0: expected it to be greater than or equal to 1"),
        ("request_seconds = nan", "serve.toml: request_seconds = nan"),
        ("drain_seconds = -1", "serve.toml: drain_seconds = -1"),
        ("drain_seconds = inf", "serve.toml: drain_seconds = inf"),
        ('device = "tpu"', "serve.toml: device = 'tpu': expected it to be 'auto', 'cpu' or 'cuda'"),
        ("keys_file = 3", "serve.toml: keys_file = 3"),
        ("port = ", "serve.toml: not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(tmp_path, text, sentence):
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, text), {})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value).partition("not TOML")[0]


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0?db=abc", "redis://localhost:6379/0?unheard=1", "redis://localhost/0?socket_timeout=x",
    ],
)  # fmt: skip
def test_a_url_that_the_redis_client_cannot_use_is_found_at_the_start(url):
    with pytest.raises(SettingsError, match=r"THREELOOPS_SERVE_REDIS_URL = \(not shown\): expected a URL such as"):
        load_settings(environment={"THREELOOPS_SERVE_REDIS_URL": url})
    load_settings(environment={"THREELOOPS_SERVE_REDIS_URL": "rediss://:hunter2@localhost:6379/3?socket_timeout=1"})


@pytest.mark.parametrize("setting", ["served-model-name", "model"])
@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "\x7f"])
def test_a_name_that_would_write_into_a_terminal_is_refused(setting, name):
    with pytest.raises(SettingsError, match=f"{setting} = .*: expected a name without control characters"):
        load_settings(environment={}, given={setting.replace("-", "_"): name})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("PORT", "x", "THREELOOPS_SERVE_PORT = 'x': expected it to be a valid integer"),
        ("PORT", "-1", "THREELOOPS_SERVE_PORT = -1: expected it to be greater than or equal to 0"),
        ("PROT", "1", "there is no setting 'THREELOOPS_SERVE_PROT'"),
        ("REQUEST_SECONDS", "nan", "THREELOOPS_SERVE_REQUEST_SECONDS = nan"),
        ("HOST", "", "THREELOOPS_SERVE_HOST = ''"),
    ],
)
def test_a_mistake_in_the_environment_is_named_as_it_stands_there(name, text, sentence):
    with pytest.raises(SettingsError) as caught:
        load_settings(environment={f"THREELOOPS_SERVE_{name}": text})
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_or_is_not_text_is_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="none.toml: the settings cannot be read: No such file"):
        load_settings(tmp_path / "none.toml", {})
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"port = 1 # \xff")
    with pytest.raises(SettingsError, match="byte 11 is not UTF-8"):
        load_settings(path, {})


def test_a_secret_is_neither_in_repr_nor_in_a_complaint():
    settings = load_settings(environment={"THREELOOPS_SERVE_REDIS_URL": "redis://:hunter2@localhost:6379/0"})
    assert settings.redis_url.get_secret_value() == "redis://:hunter2@localhost:6379/0"
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    with pytest.raises(SettingsError) as caught:
        load_settings(environment={"THREELOOPS_SERVE_REDIS_URL": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "THREELOOPS_SERVE_REDIS_URL = (not shown): expected a URL" in str(caught.value)
