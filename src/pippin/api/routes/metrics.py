"""`/metrics`: Prometheus text if the operator enables it, or JSON under the profile of mlx_vlm.server."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.routing import Api, both, json_reply
from pippin.api.telemetry.recent import RecentRequests
from pippin.core.errors import ServerError
from pippin.core.models import EngineStats, ModelState


def routes(api: Api) -> list[BaseRoute]:
    async def metrics(request: Request) -> Response:
        if isinstance(api.observer, RecentRequests):
            total = EngineStats.total((await stats_of_loaded(api)).values())
            return json_reply(api.observer.body(time.time() - api.started, total))
        if not api.options.enable_metrics:
            raise ServerError(
                "not_found", "Metrics are off; the operator turns them on with --enable-metrics."
            )
        from pippin.api.telemetry.metrics import Metrics, gauges, mcp_gauges

        assert isinstance(api.observer, Metrics)
        loaded = await stats_of_loaded(api)
        figures = gauges(api.service.pool.states(), loaded, time.time() - api.started)
        # In a thread: hundreds of models and routes make tens of thousands of lines.
        text = await asyncio.to_thread(
            api.observer.render, [*figures, *mcp_gauges(api.handler.tools.servers)]
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [*both("/metrics", metrics, media=["text/plain"])]


async def stats_of_loaded(api: Api) -> dict[str, EngineStats]:
    """A snapshot of the statistics of each loaded model; the pool answers within a second at worst."""
    loaded = [state.id for state in api.service.pool.states() if is_loaded(state)]
    stats = await asyncio.gather(*(api.service.pool.stats(name) for name in loaded))
    return dict(zip(loaded, stats, strict=True))


def is_loaded(state: ModelState) -> bool:
    return state.state == "loaded"
