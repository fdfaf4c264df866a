"""Observability for the operator: metrics under vLLM's names, a line of JSON per event, traces, and a page.

>>> logs = configure_logs(Path("serve.log"))
>>> metrics = ServiceMetrics("tiny", CollectorRegistry())
>>> seen = metrics.started(prompt_tokens=120)             # before the request queues
>>> with request_span("tiny", headers.get("traceparent"), request_id=id) as span:
...     seen.admitted(), span.event("prefill")
...     seen.token()                                      # for each
...     seen.finished("stop")
>>> metrics.engine(await engine.stats(), queued=admission.queued)
>>> metrics.text()
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.service.observability.catalog import METRICS, Metric
    from threeloops.product.service.observability.dashboard import DASHBOARD_POLICY, dashboard_page
    from threeloops.product.service.observability.logs import Logs, configure_logs
    from threeloops.product.service.observability.metrics import EngineLoad, RequestMetrics, ServiceMetrics
    from threeloops.product.service.observability.tracing import RequestSpan, request_span
else:
    import_on_demand(__name__)

__all__ = [
    "DASHBOARD_POLICY", "METRICS", "EngineLoad", "Logs", "Metric", "RequestMetrics", "RequestSpan", "ServiceMetrics",
    "configure_logs", "dashboard_page", "request_span",
]  # fmt: skip
