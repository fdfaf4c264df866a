"""Versions of a model that follow each other under load, and answers that come from Redis."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from real_redis import RealRedis
from real_service import PATIENCE, LocalService, event_data
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.service.admission import Keys
from threeloops.product.service.models import Registry

ASKED = {"model": "ours", "prompt": "a", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def redis():
    server = RealRedis()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def own(tmp_path_factory, redis):
    """A service with a registry whose first version is active, an admin's key and a cache; its client has that key."""
    folder = tmp_path_factory.mktemp("own")
    key, entry = Keys.new("admin")
    (folder / "keys.toml").write_text(f"{entry}admin = true\n")
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        config = GPTConfig(256, layers=1, heads=1, kv_heads=1, width=8, mlp_width=8, max_sequence=256)
        save_llama_folder(GPT(config), folder / name)
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")
    registry = Registry(folder / "registry")
    registry.activate(registry.publish("first", folder / "first").name)
    settings = {"keys_file": folder / "keys.toml", "registry": folder / "registry", "redis_url": redis.url}
    with LocalService(served_model_name="ours", **settings) as service:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=PATIENCE) as client:
            yield service, client, folder


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"], answer.json()["system_fingerprint"]


def test_versions_are_published_switched_and_rolled_back_and_no_request_is_dropped(own):
    service, client, folder = own
    first, version = text_of(client.post("/v1/completions", json=ASKED))
    assert version == "first"
    for name in ("second", "broken"):
        answer = client.post(f"/admin/models/{name}", json={"folder": str(folder / name)})
        assert answer.status_code == 200 and name in answer.json()["versions"]
    assert client.post("/admin/models/half", json={"folder": str(folder / "nothing")}).status_code == 409
    switched, answers = threading.Event(), []

    def keep_asking(seed):
        last = False
        while not last:  # the last one is asked after the switch
            last = switched.is_set()
            answers.append(client.post("/v1/completions", json=ASKED | {"temperature": 1, "seed": seed}))

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking, seed) for seed in range(4)]
        try:
            assert client.post("/admin/models/second/activate").json()["serving"] == "second"
        finally:
            switched.set()
        for each in asking:
            each.result(PATIENCE)
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["system_fingerprint"] for answer in answers} == {"first", "second"}
    second, version = text_of(client.post("/v1/completions", json=ASKED))
    assert version == "second" and second != first

    failed = client.post("/admin/models/broken/activate")
    assert (failed.status_code, failed.json()["error"]["code"]) == (409, "switch_failed")
    assert "second is still served" in failed.json()["error"]["message"]
    assert client.post("/admin/models/nothing/activate").json()["error"]["code"] == "registry_error"
    assert text_of(client.post("/v1/completions", json=ASKED)) == (second, "second")

    back = client.post("/admin/models/rollback").json()
    assert back["serving"] == "first" and [each["what"] for each in back["history"]][-1] == "rollback"
    assert text_of(client.post("/v1/completions", json=ASKED)) == (first, "first")
    service.settle()


def test_what_is_served_and_what_is_recorded_stay_one(own, monkeypatch):
    service, client, folder = own
    assert client.post("/admin/models/second", json={"folder": str(folder / "second")}).status_code == 200
    serving, registry = client.get("/admin/models").json()["serving"], service.service.registry

    def full(*_):
        raise OSError(28, "No space left on device")

    def refused():
        answer = client.post("/admin/models/second/activate")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "registry_error")
        text_of(client.post("/v1/completions", json=ASKED))
        assert service.service.switch.current.name == serving != "second"
        return answer.json()["error"]["message"]

    with monkeypatch.context() as patch:
        patch.setattr("threeloops.product.service.models.registry.replace_text", full)
        assert "No space left" in refused()
    history = registry.folder / "history.json"
    kept = history.read_text()
    history.write_text("{")
    assert "cannot be read" in refused()
    history.write_text(kept)

    with ThreadPoolExecutor(2) as pool:  # a change that begins while another is under way waits for it
        paths = ("/admin/models/second/activate", "/admin/models/rollback")
        assert {each.status_code for each in pool.map(client.post, paths)} <= {200, 409}
    assert service.service.switch.current.name == registry.current().name
    service.settle()


def test_an_answer_that_was_given_before_comes_from_redis_in_either_form_and_without_redis_it_is_computed(own, redis):
    service, client, _ = own
    asked = ASKED | {"prompt": "cached", "stop": ["never"]}

    def steps(**changes):
        before = service.stats().steps
        answer = client.post("/v1/completions", json=asked | changes)
        assert answer.status_code == 200
        return service.stats().steps - before, answer

    hits = service.service.cache.hits
    computed, answer = steps()
    assert computed > 0
    again, cached = steps()
    assert again == 0
    for part in ("choices", "usage"):
        one, other = answer.json()[part], cached.json()[part]
        if part == "usage":
            assert other.pop("prompt_tokens_details") == {"cached_tokens": 6} and one.pop("prompt_tokens_details")
        assert one == other
    computed, streamed = steps(stream=True)
    *events, done = event_data(streamed.text)
    assert computed == 0 and done == "[DONE]"
    assert "".join(each["choices"][0]["text"] for each in events) == answer.json()["choices"][0]["text"]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    for changes in (
        {"temperature": 1},
        {"max_tokens": 39},
        {"stop": ["other"]},
        {"prompt": "other"},
        {"ignore_eos": False},
        {"cache_salt": "another customer"},
    ):
        assert steps(**changes)[0] > 0, "another question got this answer"
    redis.kill()
    assert steps()[0] > 0
    assert service.service.cache.hits - hits == 2
