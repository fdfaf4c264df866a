"""Scraping and alerts, by promtool and by a real Prometheus that scrapes a service and fires."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from deployment import (
    FILES,
    REFUSALS,
    known_metrics,
    metrics_of,
    of,
    program,
    running,
    service_registry,
    serving_metrics,
)  # fmt: skip
from grafana import expressions
from slurm import free_ports, wait_until

RULES = of("prometheus/alerts.yml")["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule for rule in RULES}
IN_CLUSTER = "kubernetes_sd_configs:\n      - role: pod\n        namespaces: {names: [threeloops]}\n"


def promtool(*arguments, folder):
    command = [program("promtool", "prometheus"), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def copied(tmp_path):
    """The folder, with Kubernetes' discovery replaced: Debian's Prometheus is built without it."""
    shutil.copytree(FILES / "prometheus", tmp_path / "prometheus")
    text = (FILES / "prometheus/kubernetes.yml").read_text()
    assert IN_CLUSTER in text
    (tmp_path / "prometheus/kubernetes.yml").write_text(
        text.replace(IN_CLUSTER, "file_sd_configs:\n      - files: [pods.json]\n")
    )
    return tmp_path / "prometheus"


@pytest.mark.parametrize("name", ["prometheus.yml", "kubernetes.yml"])
def test_promtool_accepts_the_configuration_and_its_rules(copied, name):
    done = promtool("check", "config", name, folder=copied)
    assert done.returncode == 0, done.stderr
    assert "is valid prometheus config" in done.stdout and f"{len(ALERTS)} rules found" in done.stdout


def test_in_a_cluster_the_pods_of_the_deployment_are_scraped_and_no_others(copied):
    template = of("kubernetes/base/deployment.yaml")["spec"]["template"]["metadata"]
    wanted = {"app_kubernetes_io_name": template["labels"]["app.kubernetes.io/name"]}
    annotations = {re.sub(r"\W", "_", name): value for name, value in template["annotations"].items()}

    def pod(ip, phase="Running", **changed):
        labels = {"__meta_kubernetes_pod_ip": ip, "__meta_kubernetes_pod_phase": phase}
        labels |= {"__meta_kubernetes_namespace": "threeloops", "__meta_kubernetes_pod_name": f"pod-{ip}"}
        labels |= {f"__meta_kubernetes_pod_label_{name}": value for name, value in (wanted | changed).items()}
        labels |= {f"__meta_kubernetes_pod_annotation_{name}": value for name, value in annotations.items()}
        return {"targets": [ip], "labels": labels}

    pods = [pod("10.0.0.1"), pod("10.0.0.2", "Failed"), pod("10.0.0.3", app_kubernetes_io_name="redis")]
    (copied / "pods.json").write_text(json.dumps(pods))
    done = promtool("check", "service-discovery", "--timeout=1s", "kubernetes.yml", "threeloops", folder=copied)
    found = [each["labels"] for each in json.loads(done.stdout) if each["labels"]]
    assert [labels["__address__"] for labels in found] == ["10.0.0.1:8000"]
    assert found[0]["__metrics_path__"] == "/metrics"
    assert (found[0]["namespace"], found[0]["pod"]) == ("threeloops", "pod-10.0.0.1"), "the autoscalers ask by these"


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_quiet():
    cases = [case for test in of("prometheus/alerts_test.yml")["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    quiet = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert fires == quiet == ALERTS.keys()


def test_the_alerts_fire_and_are_quiet_as_their_cases_say():
    done = promtool("test", "rules", "alerts_test.yml", folder=FILES / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("was", "wrong"),
    [
        ("> 8\n", "> 30\n"),
        ("0.95, sum", "0.5, sum"),
        (" or vector(0)", ""),
        ("== 0\n", "== 2\n"),
        (">= 20", ">= 0"),
        (">= 4\n", ">= 1\n"),
    ],
)
def test_the_cases_notice_a_wrong_rule(tmp_path, was, wrong):
    rules = (FILES / "prometheus/alerts.yml").read_text()
    assert was in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(was, wrong))
    shutil.copy(FILES / "prometheus/alerts_test.yml", tmp_path)
    assert promtool("test", "rules", "alerts_test.yml", folder=tmp_path).returncode != 0


def test_the_alerts_name_metrics_and_codes_that_exist():
    for rule in RULES:
        assert metrics_of(rule["expr"]) <= known_metrics(), rule["alert"]
        for codes in re.findall(r'code=~"([^"]*)"', rule["expr"]):
            assert set(codes.split("|")) <= REFUSALS
        assert 'job="threeloops"' in rule["expr"], "another job's metrics may have the same names"


def test_the_service_exports_every_metric_that_alerts_and_dashboard_name():
    name = "threeloops.product.service.observability"
    metrics = pytest.importorskip(name, reason="the service is not here yet").ServiceMetrics("m")
    metrics.refused("overloaded")
    exported = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    for expression in (*(rule["expr"] for rule in RULES), *expressions()):
        assert metrics_of(expression) - {"up"} <= exported, expression


def test_each_alert_says_who_is_to_be_woken_what_is_wrong_and_where_to_look():
    manual = (FILES / "README.md").read_text()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert "{{" in rule["annotations"]["summary"] or name == "NoReplicaAnswers"
        assert rule["annotations"]["action"] and f"| `{name}` |" in manual


def test_the_alerts_follow_from_the_autoscaler_and_the_loading_time():
    deployment = of("kubernetes/base/deployment.yaml")
    startup = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    grows = ALERTS["QueueGrows"]
    minutes = int(grows["for"].removesuffix("m"))
    assert minutes * 60 > startup["periodSeconds"] * startup["failureThreshold"], "scaling has had its time"
    hpa = of("kubernetes/with_hpa/hpa.yaml")["spec"]["metrics"][0]["pods"]
    assert hpa["metric"]["name"] == "vllm_num_requests_waiting"
    assert f"> {hpa['target']['averageValue']}\n" in grows["expr"]
    assert of("prometheus/prometheus.yml")["global"] == of("prometheus/kubernetes.yml")["global"]


def test_a_real_prometheus_scrapes_a_service_draws_every_panel_and_fires(tmp_path):
    """The shipped configuration and rules with shorter intervals: nobody waits ten minutes for a test."""
    shutil.copytree(FILES / "prometheus", tmp_path, dirs_exist_ok=True)
    (tmp_path / "targets").mkdir()
    port, nobody = free_ports(2)
    for name in ("prometheus.yml", "alerts.yml"):
        text = re.sub(
            r"(scrape_interval|scrape_timeout|evaluation_interval): \w+", r"\1: 200ms", (tmp_path / name).read_text()
        )
        text = re.sub(r"for: \w+", "for: 0s", text).replace("127.0.0.1:9093", f"127.0.0.1:{nobody}")
        (tmp_path / name).write_text(text)
    command = [program("prometheus", "prometheus"), f"--web.listen-address=127.0.0.1:{port}"]
    command += ["--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path}/data", "--log.level=warn"]

    def ask(path, **query):
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def firing():
        return {alert["labels"]["alertname"] for alert in ask("alerts").get("alerts", []) if alert["state"] == "firing"}

    def without_data():
        return [each for each in expressions() if not ask("query", query=each, time=time.time()).get("result")]

    with contextlib.ExitStack() as service:
        here = service.enter_context(serving_metrics(service_registry(cache_use=0.99)))
        (tmp_path / "targets/7.yml").write_text(f'- targets: ["127.0.0.1:{here}"]\n')
        with running(command, log := tmp_path / "prometheus.log", cwd=tmp_path):
            wait_until(lambda: "CacheFull" in firing(), 15, f"CacheFull to fire: {log}")
            assert not firing() & {"ReplicaGone", "ReplicaRestarts", "QueueGrows"}
            wait_until(lambda: not without_data(), 15, "every panel of the dashboard to have data")
            service.close()
            wait_until(
                lambda: firing() >= {"ReplicaGone", "NoReplicaAnswers"}, 15, "the loss of the replica to be noticed"
            )
