"""The manifests pass the schemas of Kubernetes, and agree with each other and with the settings of the service."""

import copy
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from deployment import FILES, of, settings, start_seconds

BASE = "kubernetes/base"
MANIFESTS = [
    *(
        f"{BASE}/{kind}.yaml"
        for kind in ("deployment", "service", "poddisruptionbudget", "networkpolicy", "keys.secret")
    ),
    "kubernetes/with_hpa/hpa.yaml",
]
DEPLOYMENT = of(f"{BASE}/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
SERVE = POD["containers"][0]
HPA = of("kubernetes/with_hpa/hpa.yaml")
SCALED = of("kubernetes/with_keda/scaledobject.yaml")
LOAD = float(DEPLOYMENT["metadata"]["annotations"]["threeloops/slowest-load-seconds"])


def patience(probe: dict) -> float:
    """Seconds at most from the moment at which something fails until the probe has noticed."""
    return probe["failureThreshold"] * probe["periodSeconds"]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_passes_the_strict_schema(name, version):
    kubernetes_validate.validate(of(name), version, strict=True)


def test_the_strict_schema_would_find_a_misspelt_field():
    wrong = copy.deepcopy(DEPLOYMENT)
    wrong["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["failureTreshold"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_startup_waits_for_the_slowest_load_and_not_for_ever():
    assert LOAD <= start_seconds(SERVE["startupProbe"]) <= 3 * LOAD
    assert start_seconds(SERVE["startupProbe"]) == 1.5 * LOAD, "as the manifest and README say"
    assert DEPLOYMENT["spec"]["progressDeadlineSeconds"] > patience(SERVE["startupProbe"])


def test_readiness_takes_a_pod_out_before_liveness_restarts_it():
    assert SERVE["startupProbe"]["httpGet"]["path"] == "/health/startup", "stays 200 once the model was loaded"
    assert SERVE["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert SERVE["livenessProbe"]["httpGet"]["path"] == "/health", "a pod that loads or drains must not be restarted"
    assert patience(SERVE["readinessProbe"]) < patience(SERVE["livenessProbe"]) < patience(SERVE["startupProbe"])
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = SERVE[name]
        assert probe["timeoutSeconds"] <= probe["periodSeconds"] and probe["httpGet"]["port"] == "http"


def test_the_service_has_the_paths_that_are_probed():
    app = pytest.importorskip("threeloops.product.service.app", reason="the service is not here yet")
    routes = set(re.findall(r'"(/[\w/]*)"', Path(app.__file__).read_text()))
    probed = {SERVE[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probed | {DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]} <= routes


def test_the_kernel_kills_only_after_the_drain():
    before = SERVE["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before >= patience(SERVE["readinessProbe"]), "else requests still arrive when it refuses"
    assert POD["terminationGracePeriodSeconds"] >= before + settings()["drain_seconds"] + 10
    assert settings()["drain_seconds"] >= settings()["request_seconds"], "else a drain cuts streams short"


def test_ports_selectors_and_names_agree():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    selectors = [
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        of(f"{BASE}/service.yaml")["spec"]["selector"],
        of(f"{BASE}/poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"],
        of(f"{BASE}/networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in POD["topologySpreadConstraints"]),
    ]
    assert all(selector and selector.items() <= labels.items() for selector in selectors)

    port = SERVE["ports"][0]
    assert port["containerPort"] == settings()["port"]
    assert DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(settings()["port"])
    assert of(f"{BASE}/service.yaml")["spec"]["ports"][0]["targetPort"] == port["name"]
    assert of(f"{BASE}/networkpolicy.yaml")["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]

    for target in (HPA["spec"]["scaleTargetRef"], SCALED["spec"]["scaleTargetRef"]):
        assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": DEPLOYMENT["metadata"]["name"]}


def test_what_is_mounted_exists_and_every_volume_is_used():
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in SERVE["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    paths = list(mounts.values())
    assert not [(a, b) for a in paths for b in paths if a != b and b.startswith(f"{a}/")], "mounted inside another"

    generated = of(f"{BASE}/kustomization.yaml")["configMapGenerator"][0]
    assert volumes["settings"]["configMap"]["name"] == generated["name"]
    assert SERVE["args"] == ["--config", f"{mounts['settings']}/{generated['files'][0]}"]
    secret = of(f"{BASE}/keys.secret.yaml")
    assert volumes["keys"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert settings()["keys_file"] == f"{mounts['keys']}/{next(iter(secret['stringData']))}"
    assert settings()["model"].startswith(mounts["models"])


def test_a_pod_may_do_as_little_as_it_can():
    context = SERVE["securityContext"]
    assert POD["securityContext"]["runAsNonRoot"] and POD["securityContext"]["runAsUser"] > 0
    assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]} and POD["automountServiceAccountToken"] is False
    written = {mount["mountPath"] for mount in SERVE["volumeMounts"] if not mount.get("readOnly")}
    environment = {variable["name"]: variable["value"] for variable in SERVE["env"]}
    assert environment["HOME"] in written and environment["TRITON_CACHE_DIR"].startswith("/tmp/")


def test_a_gpu_is_requested_and_limited_alike_and_memory_too():
    requests, limits = SERVE["resources"]["requests"], SERVE["resources"]["limits"]
    assert requests["nvidia.com/gpu"] == limits["nvidia.com/gpu"] == "1"
    assert requests["memory"] == limits["memory"] and "cpu" in requests and "cpu" not in limits


def test_the_disruption_budget_leaves_somebody_and_forbids_no_drain():
    budget = of(f"{BASE}/poddisruptionbudget.yaml")["spec"]
    assert 1 <= budget["maxUnavailable"] < HPA["spec"]["minReplicas"]
    assert "replicas" not in DEPLOYMENT["spec"], "the autoscaler owns the number"


def test_both_autoscalers_want_the_same():
    spec, scaled = HPA["spec"], SCALED["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert spec["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    targets = {m["pods"]["metric"]["name"]: m["pods"]["target"]["averageValue"] for m in spec["metrics"]}
    asked = {}
    for trigger in scaled["triggers"]:
        total, name = re.match(r"(\w+)\(vllm:(\w+)\{", trigger["metadata"]["query"]).groups()
        assert (total, trigger["metricType"]) == ("sum", "AverageValue"), "KEDA divides the value by the threshold"
        asked[f"vllm_{name}"] = trigger["metadata"]["threshold"]
    assert targets == asked and len(targets) == 2


def test_the_targets_leave_room_in_the_batch_and_a_new_replica_the_time_to_load():
    targets = {m["pods"]["metric"]["name"]: float(m["pods"]["target"]["averageValue"]) for m in HPA["spec"]["metrics"]}
    assert targets["vllm_num_requests_running"] < settings()["max_running"]
    assert targets["vllm_num_requests_waiting"] < settings()["max_queued"], "else it refuses before it scales"
    up, down = HPA["spec"]["behavior"]["scaleUp"], HPA["spec"]["behavior"]["scaleDown"]
    assert all(policy["periodSeconds"] >= LOAD for policy in up["policies"])
    assert up["stabilizationWindowSeconds"] == 0 < LOAD < down["stabilizationWindowSeconds"]


def test_the_adapter_gives_the_metrics_that_the_autoscaler_asks_for():
    rule = of("kubernetes/with_hpa/prometheus_adapter.yaml")["rules"][0]
    series = re.compile(re.search(r'__name__=~"([^"]*)"', rule["seriesQuery"])[1])
    new_name = rule["name"]["as"].replace("$1", r"\1")
    for metric in HPA["spec"]["metrics"]:
        name = metric["pods"]["metric"]["name"]
        original = name.replace("vllm_", "vllm:", 1)
        assert series.fullmatch(original) and re.sub(rule["name"]["matches"], new_name, original) == name
    assert ":" not in name, "an API path has no colons"


def test_keda_is_given_fields_that_it_knows():
    """KEDA's schema is no part of Kubernetes': its fields are those of the ScaledObject specification of KEDA 2.17."""
    known = "scaleTargetRef pollingInterval cooldownPeriod initialCooldownPeriod idleReplicaCount minReplicaCount"
    known += " maxReplicaCount fallback advanced triggers"
    assert SCALED["spec"].keys() <= set(known.split())
    assert SCALED["spec"]["fallback"].keys() <= {"failureThreshold", "replicas", "behavior"}
    for trigger in SCALED["spec"]["triggers"]:
        assert trigger["type"] == "prometheus" and trigger["metadata"].keys() >= {"serverAddress", "query", "threshold"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "its schema admits texts only"
    fallback = SCALED["spec"]["fallback"]["replicas"]
    assert SCALED["spec"]["minReplicaCount"] <= fallback <= SCALED["spec"]["maxReplicaCount"]


def test_the_template_of_the_secret_has_none_and_is_not_applied():
    assert f"{BASE}/keys.secret.yaml".split("/")[-1] not in of(f"{BASE}/kustomization.yaml")["resources"]
    text = of(f"{BASE}/keys.secret.yaml")["stringData"]["keys.toml"]
    assert all(line.startswith("#") for line in text.splitlines()), "a template, not a file of keys"


@pytest.mark.parametrize("folder", ["base", "with_hpa", "with_keda"])
def test_every_file_that_is_applied_is_there_and_every_manifest_is_applied(folder):
    """`kubectl` is no package of the distribution: the build itself runs where it happens to be installed."""
    here = FILES / "kubernetes" / folder
    listed = of(f"kubernetes/{folder}/kustomization.yaml")
    assert all((here / name).exists() for name in listed["resources"])
    left_out = {"kustomization.yaml", "keys.secret.yaml", "prometheus_adapter.yaml"}
    assert {path.name for path in here.glob("*.yaml")} - left_out <= set(listed["resources"])

    if kubectl := shutil.which("kubectl"):
        built = subprocess.run([kubectl, "kustomize", here], capture_output=True, text=True, timeout=60)
        assert built.returncode == 0, built.stderr
        found = {document["kind"]: document for document in yaml.safe_load_all(built.stdout)}
        assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= found.keys()
        assert ("HorizontalPodAutoscaler" in found) + ("ScaledObject" in found) == (folder != "base")
        volume = found["Deployment"]["spec"]["template"]["spec"]["volumes"][0]
        assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"], "the hashed name arrived"
