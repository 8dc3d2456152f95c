"""What operators see: traces, slow requests, dashboards, and ids that lead from one line to another."""

import json
import logging
import re
import time
from pathlib import Path

import pytest

from pippin.api.access import exchange
from pippin.api.access.exchange import Exchange
from pippin.api.telemetry.metrics import Metrics, gauges, mcp_gauges
from pippin.cli.logs import JsonFormatter
from pippin.config.mcp_file import McpSettings
from pippin.core.events import Accepted, Finished, PartDelta, PartStarted, Usage
from pippin.core.models import EngineStats, ModelState
from pippin.mcp.tools import ToolServers

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"\b(?:pippin|vllm_mlx)_[a-z_]+")


def exported() -> set[str]:
    """Every name that a scrape can have."""
    metrics = Metrics()
    run = metrics.request("chat_completions", "m", stream=True)
    run.accepted([Accepted(3)])
    run.events([PartStarted(0, 0, "text"), PartDelta(0, 0, "a", completed=1)])
    run.events([PartDelta(0, 0, "b", completed=2), Finished(0, "stop", usage=Usage(prompt_tokens=3))])
    run.closed()
    metrics.request("chat_completions", "m", stream=True).failed("internal")
    metrics.http("GET", "/v1/models", 200, 0.1)
    states = [ModelState(id="m", kind="language", state="loaded")]
    drawn = [*gauges(states, {"m": EngineStats()}, 1.0), *mcp_gauges(ToolServers(McpSettings()))]
    text = metrics.render(drawn).decode()
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and line[0] != "#"}


@pytest.mark.parametrize("page", ["examples/grafana.json", "docs/operating.md"])
def test_dashboards_and_documents_name_only_metrics_that_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(NAME.findall(text))
    assert len(named) > 10
    assert named - exported() - {name.removesuffix("_bucket") for name in exported()} == set()


def test_what_drafting_took_and_gave_is_told() -> None:
    states = [ModelState(id="m", kind="language", state="loaded")]
    stats = EngineStats(draft_tokens=8, accepted_tokens=5, draft_seconds=0.5)
    text = Metrics().render([*gauges(states, {"m": stats}, 1.0)]).decode()
    assert 'pippin_draft_seconds_total{model="m"} 0.5' in text
    assert 'pippin_draft_tokens_total{fate="rejected",model="m"} 3.0' in text


def test_the_dashboard_is_json_with_a_query_in_every_panel() -> None:
    dashboard = json.loads((ROOT / "examples/grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel.get("type") != "row"]
    assert panels
    assert all(panel["targets"][0]["expr"] for panel in panels)


def line_of(elapsed: float, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    finished = Exchange(id="abc", path="/v1/chat/completions", status=200)
    finished.started = time.perf_counter() - elapsed
    finished.caller = "alice"
    finished.facts = {"model": "m\n12:00:00 ERROR forged", "start": 3, "queue": 1, "prefill": 2, "decode": 4}
    with caplog.at_level(logging.INFO, logger=exchange.__name__):
        exchange.write_line("POST", finished, 200)
    return caplog.records[-1]


def test_a_slow_request_is_named_with_where_its_time_went(caplog: pytest.LogCaptureFixture) -> None:
    slow = line_of(61, caplog)
    assert slow.levelname == "WARNING"
    assert slow.getMessage().startswith("Slow: POST /v1/chat/completions 200 61")
    assert "start=3 queue=1 prefill=2 decode=4" in slow.getMessage()
    assert line_of(1, caplog).levelname == "INFO"


FROM_THE_PAGE = [(b"sec-fetch-site", b"same-origin")]


@pytest.mark.parametrize(
    ("path", "headers", "status", "level"),
    [
        ("/healthz", [], 200, "DEBUG"),
        ("/metrics", [], 200, "DEBUG"),
        ("/readyz", [], 503, "DEBUG"),
        ("/metrics", [], 401, "INFO"),
        ("/v1/models", [], 200, "INFO"),
        ("/v1/models", FROM_THE_PAGE, 200, "DEBUG"),
        ("/v1/models", FROM_THE_PAGE, 401, "INFO"),
        ("/page/chat.js", [], 200, "DEBUG"),
        ("/", [], 200, "DEBUG"),
    ],
)
def test_answers_to_probes_and_to_the_page_are_for_debugging(
    path: str, headers: list[tuple[bytes, bytes]], status: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    asked = exchange.open_exchange(scope)
    with caplog.at_level(logging.DEBUG, logger=exchange.__name__):
        exchange.write_line("GET", asked, status)
    assert caplog.records[-1].levelname == level


def test_words_of_a_client_begin_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(1, caplog).getMessage()
    assert " client=alice model=m?12:00:00 ERROR forged start=3" in line
    assert "\n" not in line


def test_a_json_line_has_the_requests_id_and_its_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    line = json.loads(JsonFormatter().format(line_of(1, caplog)))
    assert line["request_id"] == "abc"
    assert (line["status"], line["client"], line["prefill"]) == (200, "alice", 2)
    assert line["level"] == "info"
