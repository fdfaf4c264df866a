"""vLLM on KServe and on Ray Serve gets the limits of our own service, and the mapping names all of them."""

import re

import kubernetes_validate
from deployment import FILES, of, settings

KSERVE = of("other_servers/kserve.yaml")["spec"]["predictor"]
RAY = of("other_servers/ray_serve.yaml")
MODEL = RAY["applications"][0]["args"]["llm_configs"][0]
HPA = of("kubernetes/with_hpa/hpa.yaml")["spec"]
POD = of("kubernetes/base/deployment.yaml")["spec"]["template"]["spec"]
LIMITS = {"max_num_seqs": "max_running", "max_num_batched_tokens": "token_budget", "block_size": "block_size"}


def kserve_arguments() -> dict[str, str]:
    split = (argument.removeprefix("--").partition("=") for argument in KSERVE["model"]["args"])
    return {name.replace("-", "_"): value for name, _, value in split}


def test_both_give_vllm_the_limits_of_our_settings():
    for theirs, ours in LIMITS.items():
        assert int(kserve_arguments()[theirs]) == MODEL["engine_kwargs"][theirs] == settings()[ours]
    assert float(kserve_arguments()["gpu_memory_utilization"]) == MODEL["engine_kwargs"]["gpu_memory_utilization"] < 1
    assert "enable_prefix_caching" in kserve_arguments() and MODEL["engine_kwargs"]["enable_prefix_caching"] is True
    assert settings()["token_budget"] >= settings()["max_running"], "vLLM refuses a budget below max_num_seqs"


def test_both_serve_the_same_model_under_the_same_name():
    claim = next(each["persistentVolumeClaim"]["claimName"] for each in POD["volumes"] if each["name"] == "models")
    assert MODEL["model_loading_config"] == {
        "model_id": settings()["served_model_name"],
        "model_source": settings()["model"],
    }
    assert kserve_arguments()["model_name"] == settings()["served_model_name"]
    assert KSERVE["model"]["storageUri"] == f"pvc://{claim}/current" and settings()["model"] == "/models/current"


def test_both_scale_between_the_same_limits_on_the_same_targets():
    ray = MODEL["deployment_config"]["autoscaling_config"]
    limits = (HPA["minReplicas"], HPA["maxReplicas"])
    assert limits == (KSERVE["minReplicas"], KSERVE["maxReplicas"]) == (ray["min_replicas"], ray["max_replicas"])
    waiting, running = (metric["pods"]["target"]["averageValue"] for metric in HPA["metrics"])
    asked = [metric["external"] for metric in KSERVE["autoScaling"]["metrics"]]
    assert [each["target"] for each in asked] == [{"type": "Value", "value": value} for value in (waiting, running)]
    assert all(each["metric"]["query"].startswith("avg(vllm:num_requests_") for each in asked)
    assert ray["target_ongoing_requests"] == int(running) < MODEL["engine_kwargs"]["max_num_seqs"]
    assert ray["downscale_delay_s"] == HPA["behavior"]["scaleDown"]["stabilizationWindowSeconds"]


def test_both_know_our_deadline_our_queue_and_our_drain():
    ray = MODEL["deployment_config"]
    assert KSERVE["timeout"] == RAY["http_options"]["request_timeout_s"] == settings()["request_seconds"]
    assert ray["max_queued_requests"] == settings()["max_queued"]
    assert ray["max_ongoing_requests"] == settings()["max_running"] + settings()["max_queued"]
    assert ray["graceful_shutdown_timeout_s"] == settings()["drain_seconds"]
    assert KSERVE["terminationGracePeriodSeconds"] == POD["terminationGracePeriodSeconds"]


def test_what_kserve_passes_to_the_pod_is_a_pod():
    """Its own schema is no part of Kubernetes'; the fields of the container and of the pod in it are."""
    ours = {"modelFormat", "storageUri"}
    container = {"name": "model"} | {name: value for name, value in KSERVE["model"].items() if name not in ours}
    spec = {"containers": [container], "terminationGracePeriodSeconds": KSERVE["terminationGracePeriodSeconds"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.37", strict=True)
    startup = POD["containers"][0]["startupProbe"]
    assert KSERVE["model"]["startupProbe"]["failureThreshold"] == startup["failureThreshold"]


def test_the_table_maps_every_setting_that_the_manifests_use():
    table = [line.split("|")[1] for line in (FILES / "other_servers/README.md").read_text().splitlines() if "|" in line]
    mapped = set(re.findall(r"`(\w+)`", " ".join(table)))
    of_the_front = {"host", "port", "body_bytes"}
    assert settings().keys() - of_the_front <= mapped
