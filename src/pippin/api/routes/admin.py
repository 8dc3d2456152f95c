"""Management: loading and unloading models, caches, settings, running requests, and the API keys in force."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import NO_ADMIN, NO_KEY
from pippin.api.dialects.registry import run_id_of
from pippin.api.dialects.shared.fields import about, convert, decode_json, invalid
from pippin.api.routes.status import adapters_of, current_state, loaded_models, options_of, worker_body
from pippin.api.routing import Api, both, json_reply, number_of
from pippin.config.errors import ConfigError
from pippin.config.options.declaration import SECRET, options
from pippin.core import logs
from pippin.core.errors import ServerError

PATHS = frozenset(
    (
        "adapter_path adapters aliases api_key_file cache_dir chat_template_file draft_model_path files_dir "
        "log_file mcp_config media_path model_dirs model_paths response_store unix_socket warm_prompts"
    ).split()
)
"""Options that reveal paths on the operator's disk; they are not shown."""


class Load(Struct, kw_only=True):
    model: Annotated[str, about("What to load.", min_length=1)]


class Unload(Struct, kw_only=True):
    model: Annotated[str | None, about("What to unload; may be left out where one model is in memory.")] = (
        None
    )
    all: Annotated[bool | None, about("Unload every model.")] = None


class Pin(Struct, kw_only=True):
    pinned: bool = True


def routes(api: Api) -> list[BaseRoute]:
    admin = Admin(api)
    return [
        *both("/unload", admin.unload, "POST", body=Unload, optional=True),
        *both("/load", admin.load, "POST", body=Load),
        *both("/models/load", admin.load, "POST", body=Load),
        *both("/models/unload", admin.unload, "POST", body=Unload, optional=True),
        *both("/models/{id:path}/load", admin.load, "POST"),
        *both("/models/{id:path}/unload", admin.unload, "POST"),
        *both("/models/{id:path}/pin", admin.pin, "POST", body=Pin, optional=True),
        *both("/models/{id:path}/unpin", admin.unpin, "POST"),
        *both("/cache", admin.clear_cache, "DELETE"),
        *both("/cache/prefix", admin.clear_prefixes, "DELETE"),
        *both("/cache/reset", admin.clear_cache, "POST"),
        *both("/settings", admin.settings),
        *both("/settings", admin.change_settings, "PATCH"),
        *both("/requests/{id}/cancel", admin.cancel, "POST"),
        *both("/requests/{id}", admin.cancel, "DELETE"),
        *both("/requests/{id}/events", admin.events, media=["text/event-stream"]),
        *both("/logs", admin.logs),
    ]


class Admin(Struct, frozen=True):
    api: Api

    async def load(self, request: Request) -> Response:
        name = request.path_params.get("id") or decode_json(await self.api.small_body(request), Load).model
        state = await self.api.service.pool.load(name)
        return json_reply({"status": "success", "model": state.id, **worker_body(state)})

    async def unload(self, request: Request) -> Response:
        """The model that is named, or else the only one; `all` for every one.

        Under the profile of mlx_vlm.server, whose `/unload` takes no name, a body without a name unloads all. The reply
        is in that server's form: `unloaded` describes the language model; `models` lists all.
        """
        pool = self.api.service.pool
        body = b"" if "id" in request.path_params else await self.api.small_body(request)
        asked = decode_json(body, Unload) if body.strip() else Unload(model=request.path_params.get("id"))
        if asked.all and asked.model is not None:
            raise invalid("all", "can't be combined with `model`.")
        resident = [state.id for state in pool.states() if state.state in ("loaded", "loading")]
        every = asked.all or self.api.settings.settings.compat == "mlx-vlm"
        if asked.model is None and not every and len(resident) > 1:
            raise invalid(
                "model",
                f'must say which: {len(resident)} are in memory; {{"all": true}} unloads all.',
            )
        names = resident if asked.model is None else [asked.model]
        states = pool.states()
        current = current_state(states, self.api.options.models)
        unloaded = [each for each in names if await pool.unload(each)]
        if not unloaded:
            return json_reply({"status": "no_model_loaded", "models": [], "message": "No model is loaded."})
        told = current.id if current is not None and current.id in unloaded else unloaded[0]
        return json_reply(
            {
                "status": "success",
                "message": f"Unloaded {', '.join(unloaded)}.",
                "unloaded": {
                    "model_name": told,
                    "adapter_name": options_of(self.api.options, told).adapter_path,
                    "models": loaded_models(
                        [state for state in states if state.id in unloaded],
                        adapters_of(states, self.api.options),
                        by_kind=self.api.settings.settings.compat == "mlx-vlm",
                    ),
                },
                "models": unloaded,
            }
        )

    async def pin(self, request: Request) -> Response:
        body = await self.api.small_body(request)
        return await self._pinned(request, decode_json(body, Pin).pinned if body else True)

    async def unpin(self, request: Request) -> Response:
        return await self._pinned(request, False)

    async def clear_cache(self, request: Request) -> Response:
        """What was computed, in memory and on disk. `enabled` is mlx_vlm.server's, `caches` vllm-mlx's."""
        cleared = await self.api.service.pool.clear_cache(disk=True)
        body = {"status": "cleared", "enabled": self.api.options.model_defaults.prefix_cache}
        return json_reply(body | {"cleared": cleared, "caches": ["prefix"]})

    async def clear_prefixes(self, request: Request) -> Response:
        """The prompts of `warm_prompts` are computed again, as vllm-mlx does."""
        pool = self.api.service.pool
        cleared = await pool.clear_cache(prefixes_only=True)
        warm = [each for each in cleared if options_of(self.api.options, each).warm_prompts is not None]
        return json_reply({"status": "cleared", "cleared": cleared, "rewarm_scheduled": bool(warm)})

    async def settings(self, request: Request) -> Response:
        """The current values, and the table of `options`: of each its group, help and default; `hot` change at once."""
        self._check_manages(request)
        current = self._current()
        table = [
            {field: value for field, value in msgspec.structs.asdict(each).items() if field != "type"}
            for each in options().values()
            if each.name in current
        ]
        return json_reply({"current": current, "options": table})

    async def logs(self, request: Request) -> Response:
        """The last lines of the log, and those alone that came after the number `after`."""
        self._check_manages(request)
        after = number_of(request, "after")
        return json_reply({"data": [line for line in list(logs.RECENT.lines) if line["number"] > after]})

    async def change_settings(self, request: Request) -> Response:
        """`{option: value}`, or mlx-vlm's `{"op": "merge", "values": {option: value}}`.

        With the op `replace`, earlier changes by requests are undone first. `notes` explains names of replaced servers:
        what each means here, or why it has no effect.
        """
        values = decode_json(await self.api.small_body(request), dict[str, Any])
        op: Literal["merge", "replace"] = values.pop("op", "merge")
        if op not in ("merge", "replace"):
            raise invalid("op", "must be `merge` or `replace`.")
        values |= convert(values.pop("values", {}), dict[str, Any], "values")
        applied: list[str] = []
        rejected: dict[str, str] = {}
        waiting: list[str] = []
        notes: dict[str, str] = {}
        if op == "replace":
            applied += (await self.api.settings.restore()).changed
        for name, value in values.items():
            try:
                changed = await self.api.settings.change({name: value})
            except ConfigError as error:
                rejected[name] = str(error)
                continue
            applied += changed.changed
            waiting += changed.needs_restart
            if changed.notes:
                notes[name] = " ".join(note.text for note in changed.notes)
        return json_reply(
            {
                "op": op,
                "applied": applied,
                "rejected": rejected,
                "needs_restart": waiting,
                "notes": notes,
                "reload_kinds": [],
                "current": self._current(),
            },
            400 if rejected and not applied and not waiting else 200,
        )

    async def cancel(self, request: Request) -> Response:
        """The id is the one of the answer (`chatcmpl-...`) or that of the request (`x-request-id`).

        Only an administrator can cancel another caller's request.
        """
        name = request.path_params["id"]
        exchange = exchange_of(request.scope)
        if (kept := self.api.handler.kept.get((exchange.owner, name))) is not None:
            await kept.cancel()
            return json_reply(cancelled(name))
        if exchange.key is None and not exchange.manages:  # callers without a key can't be told apart
            raise ServerError("permission", NO_KEY)
        running = self.api.handler.answers
        if not await running.cancel(run_id_of(self.api.dialects, name), exchange):
            raise ServerError("not_found", "No request with this id is running.", "id")
        return json_reply(cancelled(name))

    async def events(self, request: Request) -> Response:
        """The events of an answer that was asked for with `x-keep-answer`, after the number `after` (from 0), by the id
        of its request."""
        kept = self.api.handler.kept.get((exchange_of(request.scope).owner, request.path_params["id"]))
        if kept is None:
            raise ServerError("not_found", "No answer of this id is kept.", "id")
        return self.api.handler.follow(kept, number_of(request, "after"))

    def _check_manages(self, request: Request) -> None:
        exchange = exchange_of(request.scope)
        if not exchange.manages:
            raise ServerError("permission", NO_ADMIN if exchange.key else NO_KEY)

    def _current(self) -> dict[str, Any]:
        """All settings except secrets and the operator's paths."""
        hidden = SECRET | PATHS | {"models", "model_defaults"}
        server = self.api.options
        values = msgspec.structs.asdict(server) | msgspec.structs.asdict(server.model_defaults)
        return {name: msgspec.to_builtins(value) for name, value in values.items() if name not in hidden}

    async def _pinned(self, request: Request, pinned: bool) -> Response:
        state = await self.api.service.pool.pin(request.path_params["id"], pinned)
        return json_reply({"status": "success", "model": state.id, **worker_body(state)})


def cancelled(name: str) -> dict[str, Any]:
    return {"id": name, "request_id": name, "object": "request", "status": "cancelled", "success": True}
