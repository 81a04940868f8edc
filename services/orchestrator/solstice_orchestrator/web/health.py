"""Routes for monitoring: liveness, readiness and metrics."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_common.broker.protocol import BrokerHealth, QueueDepth
from solstice_common.errors import StoreUnavailable
from solstice_common.telemetry.metrics import CONTENT_TYPE
from solstice_orchestrator.metrics import NONE_WAIT, Metrics
from solstice_orchestrator.queue_times.waits import NO_LAG
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.runs import answer

QueueDepths = Callable[[], Awaitable[Mapping[str, QueueDepth]]]


async def no_depths() -> Mapping[str, QueueDepth]:
    """Return the depths without a broker."""
    return {}


class Health:
    """`/healthz`, `/readyz` and `/metrics`."""

    def __init__(
        self,
        store: JobStore,
        broker_health: Callable[[], BrokerHealth],
        metrics: Metrics,
        version: str,
        *,
        unfit: Callable[[], str | None],
        intake_problem: Callable[[], str | None],
        notices: Callable[[], Mapping[str, str]],
        require_durable: bool = False,
        queue_depths: QueueDepths,
    ) -> None:
        self._store = store
        self._broker_health = broker_health
        self._metrics = metrics
        self._version = version
        self._unfit = unfit
        self._intake_problem = intake_problem
        self._notices = notices
        self._require_durable = require_durable
        self._queue_depths = queue_depths

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/healthz", self.alive),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
        ]

    async def alive(self, _: Request) -> Response:
        """Answer 200 always; nothing is checked."""
        health = self._broker_health()
        return answer({"status": "ok", "broker": health.transport, "broker_host": health.host})

    async def ready(self, _: Request) -> Response:
        """Answer 200 when store, broker and machine can work, else 503 that names the problem.

        The broker can when its queues are declared and consumed: then a foreign client may publish.
        The notices are for the operator; they do not change readiness.
        """
        health = self._broker_health()
        checks = {
            "store": await self._store_check(),
            "broker": _broker_check(health, require_durable=self._require_durable) or self._intake_problem(),
            "worker": self._unfit(),
        }
        missing = {name: detail for name, detail in checks.items() if detail is not None}
        document = {
            "status": "not_ready" if missing else "ready",
            "version": self._version,
            "missing": missing,
            "notices": {**self._notices(), **health.notices},
        }
        return answer(document, status=503 if missing else 200)

    async def metrics(self, _: Request) -> Response:
        """Answer the metrics as Prometheus text; without the store's gauges while it is unavailable."""
        try:
            counts, workers = await self._store.counts(), await self._store.workers()
            delayed, waiting = await self._store.delayed(), await self._store.waiting_classes()
            lag = await self._store.watermark_lag()
        except StoreUnavailable:
            counts, workers, delayed, waiting, lag = {}, (), 0, NONE_WAIT, NO_LAG
        self._metrics.queues(self._broker_health().transport, await self._queue_depths())
        return Response(
            self._metrics.render(
                counts, self._broker_health(), workers, delayed=delayed, waiting=waiting, lag=lag
            ),
            headers={"Content-Type": CONTENT_TYPE},
        )

    async def _store_check(self) -> str | None:
        try:
            await self._store.counts()
        except StoreUnavailable as unavailable:
            return str(unavailable)
        return None


def _broker_check(health: BrokerHealth, *, require_durable: bool) -> str | None:
    if not health.connected:
        return health.detail or "not connected"
    if health.blocked is not None:
        return f"blocked: {health.blocked}"
    return health.notices.get("broker") if require_durable else None
