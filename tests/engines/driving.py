"""Runs an engine by hand: submit, step until it is idle, collect what came for each request."""

from collections import defaultdict

from pippin.core.events import Event
from pippin.engines.base import Engine, Job


def run(engine: Engine, *jobs: Job) -> dict[str, list[Event]]:
    """All events, by the id of the request."""
    found: dict[str, list[Event]] = defaultdict(list)
    for job in jobs:
        engine.submit(job)
    while engine.busy:
        for name, event in engine.step():
            found[name].append(event)
    return found


def no_progress(done: int, total: int, message: str) -> None:
    """For engines that are loaded by a test."""
