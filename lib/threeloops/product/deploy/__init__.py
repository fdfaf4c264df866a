"""Plain files with which an operator runs `threeloops serve` somewhere else. README.md says how to use them.

- `docker/`: the image, for a CPU or for CUDA.
- `kubernetes/`: the Deployment with its probes, drain and disruption budget; autoscaling with an HPA or with KEDA.
- `nginx/`: replicas behind one address, with streams that are not buffered and requests that are not sent twice.
- `slurm/`: a replica as a job.
- `prometheus/`, `grafana/`: scraping, alerts with unit tests, a dashboard.
- `other_servers/`: the same model behind vLLM, on KServe and on Ray Serve.

The files are package data: `importlib.resources.files("threeloops.product.deploy") / "nginx/nginx.conf"` is one.
The tests check them with the tools that read them and against each other: a number that two files share is compared.
"""

__all__: list[str] = []
