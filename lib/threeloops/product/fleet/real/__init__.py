"""The policies of a fleet on real processes: replicas of this machine behind a real NGINX.

>>> with RealFleet(serve_command("tiny"), folder, replicas=2, autoscaler=Autoscaler(target=4, maximum=3)) as fleet:
...     fleet.wait_for(2)
...     client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none")
...     fleet.containers[0].kill()

The rest of the library does not use this package. Benchmarks use it to compare the simulation with real processes, and
tests use it to check that the policies, the probes and the proxy work outside the simulation.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.fleet.real.controller import RealFleet
    from threeloops.product.fleet.real.nginx import Nginx, NginxError, Proxy, configuration
    from threeloops.product.fleet.real.replicas import Container, scrape, serve_command
else:
    import_on_demand(__name__)

__all__ = ["Container", "Nginx", "NginxError", "Proxy", "RealFleet", "configuration", "scrape", "serve_command"]
