"""The dashboard's panels and their expressions, with Grafana's variables filled in."""

import json

from deployment import FILES

DASHBOARD = json.loads((FILES / "grafana/dashboard.json").read_text())
PANELS = DASHBOARD["panels"]


def expressions() -> list[str]:
    """Of all panels; `$model` stands for all models, and a rate is taken over a minute."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$model", ".*") for each in found]
