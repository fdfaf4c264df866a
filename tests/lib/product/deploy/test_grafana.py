"""The dashboard: its expressions parse and name metrics that exist, and its panels lie beside each other.

`test_prometheus.py` asks a real Prometheus for the data of every panel.
"""

import itertools
import json
import subprocess

import yaml
from deployment import known_metrics, metrics_of, of, program
from grafana import DASHBOARD, PANELS, expressions


def test_every_expression_parses(tmp_path):
    rules = [{"record": f"panel_{n}", "expr": expression} for n, expression in enumerate(expressions())]
    rules.append({"record": "annotation", "expr": DASHBOARD["annotations"]["list"][0]["expr"]})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [program("promtool", "prometheus"), "check", "rules", tmp_path / "rules.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_every_metric_exists():
    for expression in expressions():
        assert metrics_of(expression) and metrics_of(expression) <= known_metrics(), expression


def test_every_panel_says_what_it_shows_and_in_which_unit():
    for panel in PANELS:
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", "a data source of one installation"
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_no_panel_covers_another():
    taken = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken, panel["title"]
        taken |= cells


def test_its_lines_are_those_of_the_alerts_and_the_autoscaler():
    alerts = {rule["alert"]: rule["expr"] for rule in of("prometheus/alerts.yml")["groups"][0]["rules"]}

    def red(title):
        panel = next(panel for panel in PANELS if panel["title"] == title)
        return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"] if step["value"]][0]

    assert f"> {red('P95 time to first token')}\n" in alerts["TimeToFirstTokenAboveSLO"]
    assert f"> {red('KV cache in use')}" in alerts["CacheFull"]
    assert alerts["RequestsRefused"].endswith(f"> {red('Refused')}\n")
    target = of("kubernetes/with_hpa/hpa.yaml")["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    assert red("Waiting per replica") == int(target)


def test_the_file_is_as_a_tool_writes_it():
    """Grafana's own export differs in order only then, and a change shows as what it is."""
    from deployment import FILES

    assert (FILES / "grafana/dashboard.json").read_text() == json.dumps(DASHBOARD, indent=2) + "\n"
