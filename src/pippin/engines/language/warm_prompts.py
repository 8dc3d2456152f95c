"""Prompts that are computed at the start and kept: a JSON file of texts, or of conversations."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Accepted
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt.preparer import LanguagePreparer, cache_key
from pippin.engines.language.step.engine import LanguageEngine

WARM: Final = "warm prompt "
"""The ids of these prompts begin with it; those of requests hold no blanks."""


def warm(engine: LanguageEngine, preparer: LanguagePreparer, model: str, path: Path) -> int:
    """Compute and pin each prompt of the file; gives how many. Raises `ServerError("load_failed")`.

    The engine keeps their jobs, to compute them again once they were cleared.
    """
    requests = [request_of(model, item, place) for place, item in enumerate(read_prompts(path))]
    for place, request in enumerate(requests):
        job = preparer.prepare(f"{WARM}{place}", Generate(request))
        if isinstance(job, LanguageJob):
            engine.warm_jobs.append(replace(job, pins=(len(job.prompt),)))
    engine.warm_again()
    while engine.busy:
        engine.step()
    return len(requests)


def rehearse(engine: LanguageEngine) -> None:
    """Go on once with the last conversation of an earlier process. Whoever does so first then waits neither for memory
    that was never written to nor for code that has not run yet."""
    request = GenerationRequest(model="", sampling=Sampling(temperature=0))
    prompt = engine.prefixes.recalled(key := cache_key(request))
    # Media stand there with numbers that are no tokens.
    if len(prompt) > 1 and max(prompt) < engine.batch.model.vocabulary and min(prompt) >= 0:
        job = LanguageJob(
            id=f"{WARM}of before",
            request=request,
            accepted=Accepted(len(prompt)),
            prompt=prompt,
            max_tokens=1,
            created=time.monotonic(),
            key=key,
        )
        with suppress(ServerError):  # there may be less memory now
            engine.submit(job)
        while engine.lifecycle.busy:
            engine.step()


def read_prompts(path: Path) -> list[Any]:
    try:
        items = json.loads(path.expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise _refused(f": {path} is no readable JSON file: {error}") from error
    if not isinstance(items, list):
        raise _refused(": the file must hold a list of texts or conversations")
    return items


def _refused(why: str) -> ServerError:
    return ServerError("load_failed", f"warm_prompts{why}.", "warm_prompts")


def request_of(model: str, item: Any, place: int) -> GenerationRequest:
    """A text, a list of messages, or an object with `messages` or `prompt`."""
    if isinstance(item, dict):
        item = item.get("messages", item.get("prompt"))
    sampling = Sampling(temperature=0)
    match item:
        case str():
            return GenerationRequest(model=model, prompt=item, max_tokens=0, sampling=sampling)
        case [{"role": str(), "content": str()}, *_]:
            messages = tuple(Message(role=each["role"], parts=(Text(each["content"]),)) for each in item)
            return GenerationRequest(model=model, messages=messages, max_tokens=0, sampling=sampling)
        case _:
            raise _refused(f"[{place}] is neither a text nor a list of messages with role and content")
