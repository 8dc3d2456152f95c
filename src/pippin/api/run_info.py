"""What is known of a run before it begins: its ids, the model by its name here, a fingerprint of both."""

import asyncio
import hashlib
import time
from uuid import uuid4

from pippin import __version__
from pippin.api.dialects.base import RunInfo
from pippin.api.exchange import Exchange
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.service import Service


async def model_info(service: Service, name: str) -> ModelInfo:
    """As `Service.model`; where that looks at the disk, which may be slow, it does so beside the event loop."""
    loaded = service.pool.info(name)
    return loaded if loaded is not None else await asyncio.to_thread(service.model, name)


async def run_info(service: Service, model: str, exchange: Exchange) -> RunInfo:
    """Ids of answers are Pippin's own: a client may use its request id twice."""
    known = True
    try:
        info = await model_info(service, model)
    except ServerError:
        info, known = ModelInfo(id=model, kind="language"), False  # `start` says what is wrong, or fetches it
    return RunInfo(
        id=exchange.id if exchange.own_id else uuid4().hex,
        created=int(time.time()),
        model=info.id,
        fingerprint=fingerprint(info),
        known=known,
    )


def fingerprint(info: ModelInfo) -> str:
    """Changes with Pippin's version and with how the model runs."""
    facts = (__version__, info.id, info.path, info.quantization, info.dtype, info.context_window)
    return "fp_" + hashlib.blake2s(repr(facts).encode(), digest_size=5).hexdigest()
