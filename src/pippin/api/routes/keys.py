"""`/v1/keys`: the API keys in force, for administrators. The text of a key is never shown."""

import os
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import NO_ADMIN, NO_KEY
from pippin.api.access.keys import Key, Role
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError

FROM_FILE: Final = (
    "Keys are added and withdrawn in the file of --api-key-file, which the server reads again on SIGHUP: "
    "kill -HUP {}"
)
FROM_OPTIONS: Final = (
    "Keys of --api-key stay as long as the server runs. Keep them in a file, --api-key-file, to add and withdraw keys "
    "of a server that runs."
)


class Left(Struct, kw_only=True):
    limit: Annotated[int, Meta(description="In a minute.")]
    remaining: Annotated[int, Meta(description="Of them, now.")]


class KeyDescription(Struct, kw_only=True):
    """One key. Null fields are unlimited."""

    name: Annotated[str, Meta(description="As in the log; `key-N` where the operator gave none.")]
    role: Role
    models: list[str] | None
    kinds: list[str] | None
    endpoints: list[str] | None
    mcp_tools: Annotated[bool, Meta(description="Whether it may be given the operator's MCP tools.")]
    requests: Left | None
    tokens: Left | None


class Keys(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[KeyDescription]
    note: Annotated[str, Meta(description="How keys are added and withdrawn.")]


def routes(api: Api) -> list[BaseRoute]:
    async def keys(request: Request) -> Response:
        """The keys that the server accepts: names, roles, rights, and what is left of their limits."""
        exchange = exchange_of(request.scope)
        if not exchange.manages:
            raise ServerError("permission", NO_ADMIN if exchange.key else NO_KEY)
        described = [await _described(api, key) for key in api.access.keys.ring.keys]
        note = FROM_OPTIONS if api.options.api_key_file is None else FROM_FILE.format(os.getpid())
        return json_reply(Keys(data=described, note=note))

    return [*both("/keys", keys, answer=Keys)]


async def _described(api: Api, key: Key) -> KeyDescription:
    rights, left = key.rights, api.access.limits.standing(key)
    return KeyDescription(
        name=key.name,
        role="admin" if key.is_admin else "user",
        models=None if rights.models is None else sorted(rights.models),
        kinds=None if rights.kinds is None else sorted(rights.kinds),
        endpoints=None if rights.endpoints is None else list(rights.endpoints),
        mcp_tools=key.is_admin or key.mcp_tools,
        requests=Left(limit=left["requests"][0], remaining=left["requests"][1])
        if "requests" in left
        else None,
        tokens=Left(limit=left["tokens"][0], remaining=left["tokens"][1]) if "tokens" in left else None,
    )
