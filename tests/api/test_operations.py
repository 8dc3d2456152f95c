"""Metrics, status pages, management and health, as operators and the replaced servers' clients read them."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pippin.api.app import create_app, open_api
from pippin.api.live_settings import LiveSettings
from pippin.api.routes.models import describe
from pippin.api.telemetry.metrics import LABELS, VLLM_MLX_NAMES, Metrics
from pippin.config.load import load
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.options.start import Compat
from pippin.config.settings import Settings
from pippin.core.models import CacheStats, EngineStats, ModelState, RequestStatus
from tests.api.fakes import MODEL, FakeService, application, client_of
from tests.api.golden_events import SEQUENCES
from tests.config.profiles import under

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}


def ask(
    method: str, path: str, *, service: FakeService | None = None, json: Any = None, **options: Any
) -> Any:
    async def main() -> Any:
        async with client_of(application(service or FakeService(), **options)) as client:
            return await client.request(method, path, json=json)

    return asyncio.run(main())


def scraped(events: Any, *, stream: bool = False, model: str = MODEL.id) -> dict[str, float]:
    async def main() -> str:
        async with client_of(application(FakeService(events), enable_metrics=True)) as client:
            await client.post("/v1/chat/completions", json=CHAT | {"stream": stream, "model": model})
            await client.get("/nowhere/at/all")
            return (await client.get("/metrics")).text

    values: dict[str, float] = {}
    for family in text_string_to_metric_families(asyncio.run(main())):
        values.setdefault(family.name, 0.0)  # one that nothing was counted in yet
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0) + sample.value
    return values


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_counted_once_whole_or_streamed(stream: bool) -> None:
    values = scraped(SEQUENCES["cached"], stream=stream)
    assert values["pippin_requests_total"] == values["vllm_mlx_inference_requests_total"] == 1
    assert values["pippin_prompt_tokens_total"] == values["vllm_mlx_prompt_tokens_total"] == 12
    assert values["pippin_cached_prompt_tokens_total"] == 8
    assert values["pippin_completion_tokens_total"] == 1
    assert values["pippin_time_to_first_token_seconds_count"] == 1
    assert values["pippin_requests_in_flight"] == 0


def test_gaps_are_as_many_as_tokens_after_the_first() -> None:
    assert scraped(SEQUENCES["two_choices"])["pippin_completion_tokens_total"] == 3


def test_failures_are_counted_by_kind() -> None:
    values = scraped(SEQUENCES["fails_in_text"])
    assert values["pippin_errors_total"] == 1
    assert values["pippin_requests_in_flight"] == 0
    assert scraped(SEQUENCES["text"], model="no-such")["pippin_errors_total"] == 1


def test_all_documented_names_are_there() -> None:
    values = scraped(SEQUENCES["text"])
    for name in VLLM_MLX_NAMES.values():
        assert any(found.startswith(name) for found in values), name


def test_labels_do_not_grow_with_what_clients_make_up() -> None:
    metrics = Metrics()
    for number in range(LABELS + 50):
        metrics.request("chat", f"model-{number}", stream=False).closed()
    text = metrics.render().decode()
    assert text.count("pippin_requests_total{") == LABELS + 1
    assert 'model="other"' in text


def test_names_of_models_that_there_are_not_take_no_label_from_those_that_there_are() -> None:
    async def main() -> str:
        async with client_of(application(FakeService(), enable_metrics=True)) as client:
            for number in range(LABELS + 5):
                await client.post("/v1/chat/completions", json=CHAT | {"model": f"no-such-{number}"})
            await client.post("/v1/chat/completions", json=CHAT)
            return (await client.get("/metrics")).text

    text = asyncio.run(main())
    assert "no-such" not in text
    assert f'pippin_requests_total{{kind="chat_completions",model="{MODEL.id}",outcome="stop"}} 1.0' in text
    assert 'model="unknown"' in text


def test_addresses_are_counted_by_route_and_never_by_what_was_typed() -> None:
    async def main() -> str:
        async with client_of(application(FakeService(), enable_metrics=True)) as client:
            await client.get("/v1/models/some/made-up/name")
            await client.get("/secret-path")
            return (await client.get("/metrics")).text

    text = asyncio.run(main())
    assert 'path="/v1/models/{id:path}"' in text
    assert "made-up" not in text
    assert "secret" not in text


def test_nothing_that_a_client_writes_becomes_a_label() -> None:
    async def main() -> tuple[str, str]:
        async with client_of(application(FakeService(), enable_metrics=True)) as client:
            texts = []
            for word in ("first", "mark-"):
                for number in range(LABELS + 5 if word == "mark-" else 1):
                    name = f"{word}{number}"
                    headers = {
                        "x-request-id": name,
                        "x-tenant-id": name,
                        "user-agent": name,
                        "x-session-id": name,
                    }
                    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
                    body = CHAT | {"user": name, "metadata": {"a": name}, "tools": [tool], "stop": [name]}
                    await client.post("/v1/chat/completions", json=body, headers=headers)
                    await client.request(name.upper(), f"/v1/{name}", headers=headers)
                    await client.request("PROPFIND", f"/v1/models/{name}?x={name}")
                texts.append((await client.get("/metrics")).text)
            return texts[0], texts[1]

    first, last = asyncio.run(main())
    assert "mark-" not in last.lower()
    assert (
        last.count("pippin_http_requests_total{") <= first.count("pippin_http_requests_total{") + 1
    )  # /metrics
    assert abs(len(last.splitlines()) - len(first.splitlines())) < 60


def test_metrics_are_off_unless_enabled_and_open_unless_closed() -> None:
    assert ask("GET", "/metrics").status_code == 404
    assert ask("GET", "/metrics", enable_metrics=True, api_keys=("k",)).status_code == 200
    assert ask("GET", "/metrics", enable_metrics=True, api_keys=("k",), metrics_auth=True).status_code == 401


def test_health_shows_workers_only_to_those_with_a_key() -> None:
    body = ask("GET", "/health").json()
    assert body["workers"][0]["pid"] == 1
    shy = ask("GET", "/health", api_keys=("k",)).json()
    assert shy["status"] == "healthy"
    assert "workers" not in shy


def test_health_is_healthy_with_nothing_loaded() -> None:
    service = FakeService()
    service.pool.loaded = False
    body = ask("GET", "/health", service=service).json()
    assert (body["status"], body["loaded_model"], body["loaded_models"]) == ("healthy", None, {})
    assert body["residency_state"] == "unloaded"


def test_a_server_is_ready_once_the_models_of_its_start_were_loaded() -> None:
    loaded, other = ModelEntry(path=MODEL.id), ModelEntry(path="other")
    reply = ask("GET", "/readyz", models=(loaded, other))
    assert (reply.status_code, reply.json()) == (503, {"ready": False, "loaded": 1, "wanted": 2})
    later = msgspec.structs.replace(other, preload=False)
    for models in ((), (loaded,), (loaded, later)):
        assert ask("GET", "/readyz", models=models).status_code == 200


def test_a_model_that_a_client_has_loaded_does_not_stand_for_one_of_the_start() -> None:
    assert ask("GET", "/readyz", models=(ModelEntry(path="other"),)).status_code == 503


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/healthz", "/", "/v1/models", "/models"])
def test_head_is_get_without_a_body(path: str) -> None:
    reply = ask("HEAD", path)
    assert (reply.status_code, reply.content) == (200, b"")


def test_status_has_the_fields_that_vllm_mlx_documents() -> None:
    body = ask("GET", "/v1/status").json()
    documented = {
        "status", "model", "residency", "embedding", "uptime_s", "steps_executed", "num_running", "num_waiting",
        "total_requests_processed", "total_prompt_tokens", "total_completion_tokens", "generation_tps",
        "prompt_tps", "metal", "cache", "mtp", "requests", "model_manager",
    }  # fmt: skip
    assert documented <= set(body)
    assert {(each["status"], each["loaded"]) for each in body["model_manager"]["models"]} == {
        ("loaded", True)
    }
    assert (body["num_running"], body["steps_executed"]) == (1, 7)
    assert ask("GET", "/v1/queue/stats").json()["queue_stats"]["running"] == 1
    cache = ask("GET", "/cache/stats").json()
    assert {"block_size", "token_hit_rate", "lookups_hit", "evictions", "disk_bytes"} <= set(cache)


def test_totals_of_the_status_outlive_the_models() -> None:
    service = FakeService()

    async def main() -> list[Any]:
        async with client_of(application(service)) as client:
            chat = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
            usage = (await client.post("/v1/chat/completions", json=chat)).json()["usage"]
            await client.post("/unload")
            return [usage, (await client.get("/v1/status")).json()]

    usage, status = asyncio.run(main())
    assert usage["completion_tokens"] > 0
    for name in ("prompt_tokens", "completion_tokens"):
        assert status[f"total_{name}"] == usage[name]
    assert (status["total_requests_processed"], status["num_running"]) == (1, 0)


def test_figures_of_several_engines_add_up() -> None:
    status = RequestStatus(id="a", phase="prefill")
    one = EngineStats(running=1, prompt_tps=2.5, cache=CacheStats(hits=2, hit_tokens=5, lookup_tokens=10))
    total = EngineStats.total([one, one, EngineStats(requests=(status,))])
    assert (total.running, total.prompt_tps, total.cache.hits) == (2, 5.0, 4)
    assert total.requests == (status,)
    assert (total.cache.hit_ratio, CacheStats().hit_ratio) == (0.5, 0.0)


def test_unload_names_what_left_and_says_when_nothing_was_there() -> None:
    service = FakeService()
    app = application(service)

    async def main() -> list[Any]:
        async with client_of(app) as client:
            return [(await client.post("/unload")).json() for _ in range(2)]

    first, second = asyncio.run(main())
    assert (first["status"], first["models"]) == ("success", [MODEL.id])
    assert first["unloaded"] == {
        "model_name": MODEL.id,
        "adapter_name": None,
        "models": {MODEL.id: {"model": MODEL.id, "adapter": None, "model_kind": "language"}},
    }
    assert second["status"] == "no_model_loaded"


def test_a_model_is_found_by_an_id_with_slashes() -> None:
    body = ask("GET", f"/v1/models/{MODEL.id}").json()
    assert (body["id"], body["max_model_len"], body["object"]) == (MODEL.id, 4096, "model")
    assert ask("GET", "/v1/models/org/none").json()["error"]["code"] == "model_not_found"
    assert ask("POST", f"/v1/models/{MODEL.id}/unload").json()["models"] == [MODEL.id]


def test_unknown_addresses_and_methods_have_openais_shape() -> None:
    missing = ask("GET", "/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    wrong = ask("PUT", "/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/settings", "GET, HEAD, PATCH"),
        ("/v1/responses/resp_x", "DELETE, GET, HEAD"),
        ("/v1/chat/completions", "POST"),
    ],
)
def test_a_wrong_method_is_told_all_that_the_address_answers(path: str, methods: str) -> None:
    wrong = ask("PUT", path)
    assert wrong.headers["allow"] == methods
    assert wrong.json()["error"]["message"].endswith(f"it answers {methods}.")


def test_unloading_without_a_name_takes_the_only_model_and_never_all_by_accident() -> None:
    service = FakeService()
    only = ask("POST", "/v1/unload", service=service).json()
    assert only["models"] == [MODEL.id]
    several = FakeService()
    states = [ModelState(id=name, kind="language", state="loaded") for name in (MODEL.id, "other")]
    several.pool.states = lambda: states  # type: ignore[method-assign]
    refused = ask("POST", "/v1/unload", service=several)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert ask("POST", "/v1/unload", service=several, json={"all": True}).status_code == 200
    both = ask("POST", "/v1/unload", service=several, json={"all": True, "model": "other"})
    assert both.json()["error"]["param"] == "all"


def test_models_come_in_pages_as_anthropic_has_them() -> None:
    whole = ask("GET", "/v1/models?limit=5").json()
    assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (MODEL.id, MODEL.id, False)
    assert whole["data"][0]["created_at"] == "2023-11-14T22:13:20Z"
    after = ask("GET", f"/v1/models?after_id={MODEL.id}").json()
    assert (after["data"], after["first_id"]) == ([], None)
    assert ask("GET", "/v1/models?limit=0").json()["error"]["param"] == "limit"
    assert ask("GET", "/v1/models?before_id=other").json()["error"]["param"] == "before_id"


def test_a_models_length_is_what_fits_and_a_load_is_told_of() -> None:
    state = ModelState(id=MODEL.id, kind="language", state="loaded")
    assert describe(MODEL, state, 1024)["meta"] == {"context_length": 1024}
    assert describe(MODEL, state, 1 << 20)["context_length"] == MODEL.context_window
    assert describe(MODEL, None)["max_model_len"] == MODEL.context_window
    loading = ModelState(
        id=MODEL.id, kind="language", state="loading", stage="weights", progress=(1, 4, "files")
    )
    told = describe(MODEL, loading)
    assert (told["state"], told["stage"], told["progress"]) == ("loading", "weights", (1, 4, "files"))
    assert not told["loaded"]


def test_an_attempt_at_a_websocket_is_told_what_the_address_speaks() -> None:
    async def main() -> Any:
        async with client_of(application(FakeService())) as client:
            return await client.get("/v1/chat/completions", headers={"upgrade": "websocket"})

    reply = asyncio.run(main())
    assert reply.status_code == 405
    assert "speaks no WebSocket; it answers POST" in reply.json()["error"]["message"]
    anthropic = ask("GET", "/v1/messages")
    assert (anthropic.status_code, anthropic.json()["type"]) == (405, "error")


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/chat/completions//", "/v1//chat/completions"])
def test_a_slash_too_many_in_an_address_changes_nothing(path: str) -> None:
    assert ask("POST", path, json=CHAT).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
def test_who_opens_the_address_in_a_browser_is_told_where_to_look(path: str) -> None:
    assert ask("GET", path).json()["docs"] == "/docs"


def test_settings_tell_neither_secrets_nor_what_is_where_on_the_disk() -> None:
    given = {"log_file": "/var/hidden", "media_path": "/srv/hidden", "model_dirs": ("/home/hidden",)}
    of_models = ModelOptions(cache_dir="/cache/hidden", adapters={"a": "/adapters/hidden"})
    shown = ask("GET", "/v1/settings", **given, model_defaults=of_models)
    assert shown.json()["current"]["max_body_mb"] == 64
    assert "hidden" not in shown.text


@pytest.mark.parametrize("path", ["/v1/models/load", "/v1/settings", "/v1/models/x/pin"])
def test_management_bodies_that_are_wrong_are_400(path: str) -> None:
    method = "PATCH" if path.endswith("settings") else "POST"
    for body in ([], "x", 5, {"model": 5, "pinned": 5, "op": "replace", "values": []}):
        assert ask(method, path, json=body).status_code == 400, body


def test_a_setting_changes_while_it_runs_or_says_that_it_needs_a_restart() -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            reply = (await client.patch("/v1/settings", json={"port": 9})).json()
            assert (reply["applied"], reply["needs_restart"]) == ([], ["port"])
            mixed = await client.patch(
                "/v1/settings", json={"op": "merge", "values": {"nope": 1, "temperature": 0.5}}
            )
            assert mixed.status_code == 200
            assert mixed.json()["applied"] == ["temperature"]
            assert mixed.json()["current"]["temperature"] == 0.5
            assert (await client.get("/v1/settings")).json()["current"]["temperature"] == 0.5

    asyncio.run(main())


def test_what_requests_have_changed_is_taken_back() -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            start = (await client.get("/v1/settings")).json()["current"]
            await client.patch("/v1/settings", json={"temperature": 0.5, "rate_limit": 7})
            body = {"op": "replace", "values": {"rate_limit": 9}}
            reply = (await client.patch("/v1/settings", json=body)).json()
            assert set(reply["applied"]) == {"temperature", "rate_limit"}
            assert reply["current"] == {**start, "rate_limit": 9}
            other = await client.patch("/v1/settings", json={"op": "forget", "values": {}})
            assert (other.status_code, other.json()["error"]["param"]) == (400, "op")

    asyncio.run(main())


def test_a_client_opens_no_folder_of_models() -> None:
    refused = ask("GET", "/v1/models?model_dir=/etc")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model_dir")
    assert ask("GET", "/v1/models?model_dir=").status_code == 200, "an empty one means nothing"


def test_a_changed_limit_holds_for_the_next_request() -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            await client.patch("/v1/settings", json={"rate_limit": 1, "max_body_mb": 0.001})
            codes = [(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(2)]
            assert codes == [200, 429]
            await client.patch("/v1/settings", json={"rate_limit": 0})
            long = CHAT | {"user": "x" * 2000}
            assert (await client.post("/v1/chat/completions", json=long)).status_code == 413

    asyncio.run(main())


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    dashboard = json_of(Path(__file__).parents[2] / "examples" / "grafana.json")
    asked = set(re.findall(r"pippin_\w+", " ".join(find_expressions(dashboard))))
    known = set(scraped(SEQUENCES["text"])) | {"pippin_errors_total"}
    assert asked
    assert {name for name in asked if not any(name.startswith(found) for found in known)} == set()


def json_of(path: Path) -> Any:
    return json.loads(path.read_text())


def find_expressions(dashboard: Any) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


class Live(LiveSettings):
    def __init__(self, reload: Callable[[], Awaitable[None]]) -> None:
        super().__init__(Settings(server=ServerOptions()), cast(Any, FakeService()))
        self._own = reload

    async def reload(self) -> None:
        await self._own()


def test_what_is_asked_for_during_a_reload_is_done_after_it() -> None:
    begun: list[int] = []

    async def play() -> None:
        gate = asyncio.Event()

        async def reload() -> None:
            begun.append(len(begun))
            await gate.wait()

        live = Live(reload)
        live.ask_for_reload()
        await asyncio.sleep(0)
        assert begun == [0]
        for _ in range(3):
            live.ask_for_reload()
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == [0, 1]
        live.ask_for_reload()
        await asyncio.sleep(0)
        assert begun == [0, 1, 2]

    asyncio.run(play())


def test_a_reload_that_fails_is_said_and_keeps_no_later_one_away(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> int:
        tries = 0

        async def reload() -> None:
            nonlocal tries
            tries += 1
            raise OSError("the disk is gone")

        live = Live(reload)
        for _ in range(2):
            live.ask_for_reload()
            await asyncio.sleep(0)
        return tries

    assert asyncio.run(play()) == 2
    assert caplog.text.count("could not be read again") == 2


@pytest.mark.parametrize(
    ("compat", "asked", "told"),
    [
        (None, {}, [False, False]),
        ("vllm-mlx", {}, [True, False]),
        ("mlx-openai-server", {}, [True, False]),
        ("mlx-server", {}, [True, False]),
        ("mlx-server", {"stream_options": {"include_usage": False}}, [False, False]),
        ("vllm-mlx", {"stream_options": {"include_usage": True}}, [False, True]),
    ],
)
def test_streams_tell_their_usage_unasked_under_profiles_that_did(
    compat: Compat | None, asked: dict[str, Any], told: list[bool]
) -> None:
    """In the chunk with `finish_reason`, or in the chunk of its own that OpenAI has for whoever asks."""
    server = load(under(compat), {}).server
    answer = ask(
        "POST", "/v1/chat/completions", json=CHAT | asked | {"stream": True}, stream_usage=server.stream_usage
    )
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    last = next(each for each in chunks if each["choices"] and each["choices"][0]["finish_reason"])
    apart = [each for each in chunks if not each["choices"]]
    assert [bool(last.get("usage")), bool(apart)] == told


@pytest.mark.parametrize(
    ("compat", "owner"), [(None, "pippin"), ("mlx-server", "local"), ("vllm-mlx", "vllm-mlx")]
)
def test_models_are_owned_by_whom_the_profiles_server_said(compat: Compat | None, owner: str) -> None:
    app = create_app(open_api(cast(Any, FakeService()), Settings(server=ServerOptions(), compat=compat)))

    async def main() -> Any:
        async with client_of(app) as client:
            return (await client.get("/v1/models")).json()

    assert {each["owned_by"] for each in asyncio.run(main())["data"]} == {owner}


@pytest.mark.parametrize(
    ("compat", "form", "language"),
    [(None, "verbose_json", "german"), ("mlx-vlm", "verbose_json", "de"), (None, "ndjson", "de")],
)
def test_a_transcription_names_its_language_as_openai_or_as_mlx_vlm(
    compat: Compat | None, form: str, language: str
) -> None:
    app = create_app(open_api(cast(Any, FakeService()), Settings(server=ServerOptions(), compat=compat)))

    async def main() -> Any:
        async with client_of(app) as client:
            asked = {"model": MODEL.id, "response_format": form}
            return await client.post("/v1/audio/transcriptions", data=asked, files={"file": b"RIFF"})

    assert json.loads(asyncio.run(main()).text)["language"] == language
