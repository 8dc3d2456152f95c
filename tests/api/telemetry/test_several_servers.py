"""What several servers count: their sums are what one server would have counted, and sums are what Prometheus makes."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pippin.api.telemetry.metrics import Metrics, gauges
from pippin.core.events import Accepted, Event, Finished, PartDelta, PartStarted, Usage
from pippin.core.models import CacheStats, EngineStats, ModelState

ROOT = Path(__file__).parents[3]
OF_THE_SERVER = {"pippin_uptime_seconds", "pippin_models_known", "pippin_requests_in_flight"}
"""Gauges that are of no model."""


def answer(metrics: Metrics, model: str, prompt: int, cached: int) -> None:
    run = metrics.request("chat_completions", model, stream=True)
    run.accepted([Accepted(prompt)])
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=2)
    events: list[Event] = [PartStarted(0, 0, "text"), PartDelta(0, 0, "a", completed=1)]
    run.events([*events, PartDelta(0, 0, "b", completed=2), Finished(0, "stop", usage=usage)])
    run.closed()
    metrics.http("POST", "/v1/chat/completions", 200, 0.5)


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What may be added up: every sample of counters and histograms, but for the sums of seconds, which differ."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if not sample.name.endswith(("_created", "_seconds_sum"))
    }


def test_the_sums_of_two_servers_are_what_one_would_have_counted() -> None:
    servers, alone = (Metrics(), Metrics()), Metrics()
    for number in range(6):
        for each in (servers[number % 2], alone):
            answer(each, "a" if number < 4 else "b", 100 + number, 10 * number)
    servers[0].request("chat_completions", "a", stream=False).failed("internal")
    alone.request("chat_completions", "a", stream=False).failed("internal")
    parts = [samples(each.render()) for each in servers]
    names = {name for part in parts for name in part}
    sums = {name: sum(part.get(name, 0.0) for part in parts) for name in names}
    counts = samples(alone.render())
    # Which bucket a time falls into is the clock's; how many there are is not.
    assert {name: value for name, value in sums.items() if "_bucket" not in name[0]} == {
        name: value for name, value in counts.items() if "_bucket" not in name[0]
    }
    assert sums.keys() == counts.keys()  # the same buckets, too


def test_what_is_there_now_is_labelled_with_its_model() -> None:
    stats = {"m": EngineStats(cache=CacheStats(hits=1, lookup_tokens=2))}
    read = gauges([ModelState(id="m", kind="language")], stats, 1.0)
    unlabelled = {family.name for family in read for sample in family.samples if "model" not in sample.labels}
    assert {name for name in unlabelled if name.startswith("pippin_")} <= OF_THE_SERVER


def test_the_dashboard_adds_up_servers_and_no_ratios() -> None:
    panels = json.loads((ROOT / "examples" / "grafana.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    assert not [words for words in asked if re.search(r"(sum|avg)[^(]*\(\s*pippin_\w+_ratio", words)]
    counters = [words for words in asked if "_total" in words or "_bucket" in words]
    assert counters
    assert all("sum by" in words for words in counters)
