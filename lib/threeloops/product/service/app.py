"""The service as an ASGI application: its parts, its start and end, and its routes.

Three probes answer three questions. `/health` says whether this process answers; if not, restart it (liveness).
`/health/startup` says whether the first model has been loaded; until then, wait (startup). `/ready` says whether a
request sent now would be accepted; if not, send it elsewhere (readiness). It is 503 while a model loads, while the
engine's process is being replaced, and while the service drains. A liveness probe on `/ready` would restart a service
that is only loading.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import Scope

from threeloops.product.service.admission import Admission, Client, Keys, Refused
from threeloops.product.service.completions import Answer
from threeloops.product.service.engine import EngineSpec, EngineStopped, Supervisor
from threeloops.product.service.generation import Job, job_of
from threeloops.product.service.http.bodies import check_kind
from threeloops.product.service.http.errors import ErrorBody, install_error_handlers
from threeloops.product.service.http.limits import BoundedRequests
from threeloops.product.service.http.observed import Observed
from threeloops.product.service.models import (
    NotServingError,
    Registry,
    RegistryError,
    RollingSwitch,
    SwitchFailedError,
    Version,
)
from threeloops.product.service.observability import DASHBOARD_POLICY, Logs, ServiceMetrics, dashboard_page
from threeloops.product.service.openai_protocol import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Model,
    ModelList,
)
from threeloops.product.service.response_cache import ResponseCache
from threeloops.product.service.settings import Settings

__all__ = ["Service", "create_app"]

_CUT_SECONDS = 3.0
"""The time in which answers that a drain has cut off can say so."""


class Service:
    """Everything behind the routes. `open` returns at once and loads the model meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys.load(settings.keys_file) if settings.keys_file else Keys.open()
        self.registry = Registry(settings.registry) if settings.registry else None
        self.admission = Admission(settings.max_running, settings.max_queued)
        self.switch: RollingSwitch[Version, Supervisor] = RollingSwitch(self._start, Supervisor.close)
        self.metrics = ServiceMetrics(settings.name)
        url = settings.redis_url
        self.cache = ResponseCache(url.get_secret_value(), settings.cache_seconds) if url else None
        self.logs: Logs | None = None
        """The logs, set by whoever configures them. They count dropped lines."""
        self.open_answers: set[Answer] = set()
        self.failure = ""  # why the first model could not be served, after which there is no point in going on
        self.failed = asyncio.Event()
        self._created = int(time.time())
        self._opening: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        """Held while switch and registry change together: two changes at once could leave them apart."""

    def check(self, scope: Scope) -> None:
        """Note whose request it is. Raises Refused, 401, 403 or 415. Probes and metrics need no key."""
        path = scope["path"]
        if path.startswith(("/v1/", "/admin/")):
            client = self.keys.client(Headers(scope=scope).get("authorization"))
            if path.startswith("/admin/") and not client.admin:
                raise Refused(403, "not_admin", "this API key may not switch models: use one with `admin = true`")
            scope["state"]["client"] = client
            check_kind(dict(scope["headers"]))

    def open(self) -> None:
        self._opening = asyncio.create_task(self._open())

    async def drain(self) -> None:
        """Refuse new requests, wait for the current ones, and cut off what remains after `drain_seconds`."""
        self.admission.drain()
        for seconds in (self.settings.drain_seconds, _CUT_SECONDS):
            try:
                async with asyncio.timeout(seconds):
                    while self.open_answers or self.admission.running or self.admission.queued:
                        await self.admission.drained()
                        await asyncio.sleep(0.01)  # an answer that has left admission still sends its end
                return
            except TimeoutError:
                stopping = f"the service is shutting down, and this request has not ended in {seconds:g} s"
                for answer in list(self.open_answers):
                    answer.cut(Refused(503, "draining", stopping, 1.0))

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        for answer in list(self.open_answers):
            answer.cut(Refused(503, "draining", "the service is shutting down", 1.0))
        await self.switch.close()
        if self.cache is not None:
            await self.cache.close()

    async def state(self) -> tuple[str, str]:
        """One word for `/ready`, and the reason if it is not "ready"."""
        if self.admission.draining:
            return "draining", "the service is shutting down"
        try:
            async with self.switch.lease() as engine:
                return ("ready", "") if engine.ready else ("restarting", engine.reason or "the engine starts again")
        except NotServingError:
            return ("failed", self.failure) if self.failure else ("loading", "the model is being loaded")

    async def job(self, asked: CompletionRequest | ChatRequest, client: Client) -> Job:
        """A request for the current model. Raises NotServingError while there is none, and Refused."""
        async with self.switch.lease() as engine:
            return await job_of(asked, client, self.settings, engine.served)

    async def metrics_text(self) -> str:
        """Return the metrics for Prometheus after asking the engine. If it does not answer, gauges are 0 and counters
        stay."""
        try:
            async with self.switch.lease() as engine:
                stats = await engine.stats()
        except (NotServingError, EngineStopped):
            stats = None
        self.metrics.engine(stats, queued=self.admission.queued)
        if self.cache is not None:
            self.metrics.cache(self.cache.hits, self.cache.misses, self.cache.errors)
        if self.logs is not None:
            self.metrics.log_lines_dropped(self.logs.dropped)
        return self.metrics.text()

    async def activate(self, registry: Registry, name: str) -> Version:
        """Serve a version, and make it the registry's current one once it is served. Raises RegistryError for one that
        is not whole or cannot be recorded, and SwitchFailedError for one that does not start: then the version before
        is served."""
        async with self._changing:
            version = await asyncio.to_thread(registry.version, name)
            before = self.switch.current
            await asyncio.to_thread(registry.history)  # damaged, it is found before anything has changed
            await self.switch.to(version)
            try:
                await asyncio.to_thread(registry.activate, name)
            except RegistryError:
                if before is not None:
                    await self.switch.to(before)
                raise
            return version

    async def rollback(self, registry: Registry) -> Version:
        """Serve the version before the current one. Raises as `activate` does."""
        async with self._changing:
            before = await asyncio.to_thread(registry.current)
            version = await asyncio.to_thread(registry.rollback)
            try:
                await self.switch.to(version)
            except (SwitchFailedError, NotServingError):
                await asyncio.to_thread(registry.activate, before.name)
                raise
            return version

    async def _open(self) -> None:
        try:
            version = Version(self.settings.name, Path(self.settings.model), "", 0.0)
            if self.registry is not None and self.registry.history():
                version = await asyncio.to_thread(self.registry.current)
            await self.switch.to(version)
        except Exception as error:  # whatever it is, whoever started this must know
            self.failure = str(error.__cause__ or error)
            self.failed.set()

    async def _start(self, version: Version) -> Supervisor:
        given = self.settings
        same = {name: value for name, value in given if name in EngineSpec.__struct_fields__ and name != "model"}
        spec = EngineSpec(str(version.folder), **same, fingerprint=self.cache is not None)
        return await Supervisor(spec, load_seconds=given.load_seconds, step_seconds=given.step_seconds).open()


def create_app(settings: Settings) -> FastAPI:
    """An ASGI application; its `state.service` is the Service. Raises KeysFileError for a bad file of keys."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        yield
        await service.close()

    app = FastAPI(
        title="Three Loops",
        description="A model of the course behind OpenAI's protocol.",
        lifespan=lifespan,
        redirect_slashes=False,  # the address to go to would be the client's own Host
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        responses={"default": {"model": ErrorBody, "description": "A refusal, in OpenAI's format."}},
    )
    app.state.service = service
    install_error_handlers(app)
    limits: Any = {"body_bytes": settings.body_bytes, "body_seconds": settings.body_seconds}
    app.add_middleware(BoundedRequests, **limits, check=service.check)
    app.add_middleware(Observed, refused=service.metrics.refused)
    _add_openai(app, service)
    _add_probes(app, service)
    _add_admin(app, service)
    return app


def _client_of(request: Request) -> Any:
    return request.state.client  # noted by `check`


_Client = Annotated[Client, Depends(_client_of)]
_EVENTS: Any = {200: {"content": {"text/event-stream": {}}, "description": "The answer, or with `stream` its events."}}


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", response_model=Completion, responses=_EVENTS)
    async def complete(body: CompletionRequest, client: _Client) -> Response:
        """Continue a text."""
        return Answer(service, await service.job(body, client))

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_EVENTS)
    async def chat(body: ChatRequest, client: _Client) -> Response:
        """Answer a conversation."""
        return Answer(service, await service.job(body, client))

    def described() -> Model:
        return Model(id=service.settings.name, created=service._created)

    @app.get("/v1/models")
    async def models(client: _Client) -> ModelList:
        """List the served models."""
        return ModelList(data=[described()])

    @app.get("/v1/models/{name:path}")
    async def model(name: str, client: _Client) -> Model:
        """One model, by its name."""
        if name != service.settings.name:
            raise Refused(404, "model_not_found", f"there is no model {name!r}: this is {service.settings.name!r}")
        return described()


class _Publish(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    folder: str = Field(min_length=1)
    """The folder of the model's files, on the service's machine."""


def _registry_of(request: Request) -> Registry:
    service: Service = request.app.state.service
    if service.registry is None:
        raise Refused(404, "no_registry", "this service has no registry of models: set `registry` to its folder")
    return service.registry


_Registry = Annotated[Registry, Depends(_registry_of)]


def _add_admin(app: FastAPI, service: Service) -> None:
    def described(registry: Registry) -> dict[str, Any]:
        current = service.switch.current
        starting = service.switch.starting
        return {
            "serving": str(current) if current else None,
            "starting": str(starting) if starting else None,
            "versions": registry.names(),
            "history": registry.history(),
        }

    @app.get("/admin/models")
    async def versions(registry: _Registry) -> dict[str, Any]:
        """All versions, and which one serves."""
        return described(registry)

    @app.post("/admin/models/rollback")
    async def rollback(registry: _Registry, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go back to the version before. Answers when it serves and the old engine has ended."""
        if body and "folder" in body:
            raise RegistryError("a version cannot be named 'rollback', which is a command: use another name")
        await service.rollback(registry)
        return described(registry)

    @app.post("/admin/models/{name}")
    async def publish(name: str, body: _Publish, registry: _Registry) -> dict[str, Any]:
        """Copy a folder into the registry, as a version that does not serve yet."""
        await asyncio.to_thread(registry.publish, name, Path(body.folder))
        return described(registry)

    @app.post("/admin/models/{name}/activate")
    async def activate(name: str, registry: _Registry) -> dict[str, Any]:
        """Go over to a version, without dropping a request. Answers when it serves and the old engine has ended."""
        await service.activate(registry, name)
        return described(registry)


class _Probe(BaseModel):
    status: str
    reason: str


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: this process answers."""
        return {"status": "alive"}

    unready: Any = {503: {"model": _Probe, "description": "Not yet, or not any more."}}

    @app.head("/health/startup", include_in_schema=False)
    @app.get("/health/startup", response_model=_Probe, responses=unready)
    async def startup() -> Response:
        """Startup: the first model has been loaded."""
        is_loaded = service.switch.current is not None
        status = "started" if is_loaded else "loading"
        return JSONResponse({"status": status, "reason": service.failure}, 200 if is_loaded else 503)

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", response_model=_Probe, responses=unready)
    async def ready() -> Response:
        """Readiness: a request that is sent now would be taken."""
        status, reason = await service.state()
        return JSONResponse({"status": status, "reason": reason}, 200 if status == "ready" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Serve the metrics to Prometheus under vLLM's names."""
        return Response(await service.metrics_text(), media_type=service.metrics.content_type)

    @app.get("/dashboard", response_class=HTMLResponse)
    async def dashboard() -> Response:
        """A page that draws the metrics."""
        page = dashboard_page(service.settings.name)
        return HTMLResponse(page, headers={"content-security-policy": DASHBOARD_POLICY})
