"""One server of several API processes, asked over its socket by real clients."""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import psutil
import pytest

from pippin.api.processes.owner import check_options
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from tests.cli.serving import Serving, Terminal
from tests.running_server import running_server
from tests.service.doubles import write_script

SCRIPT = {
    "rules": [
        {"when": {"user": "for ever"}, "say": ["word "] * 4000, "gap": 0.01},
        {"when": {"user": "a while"}, "say": ["word "] * 10, "gap": 0.05},
        {"when": {"user": "die"}, "say": ["word "] * 10, "gap": 0.02, "fault": {"kind": "abort", "after": 4}},
    ]
}
KEYS = {
    "root": {"key": "sk-root", "role": "admin"},
    "alice": "sk-alice",
    "bob": "sk-bob",
    "carol": {"key": "sk-carol", "rate_limit": 2},
    "dora": {"key": "sk-dora", "token_rate_limit": 60},
}
MOST_AT_ONCE = 8


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    terminal = Terminal(tmp_path_factory.mktemp("home"))
    (terminal.home / "live.script.json").write_text(json.dumps(SCRIPT))
    (terminal.home / "keys.yaml").write_text(json.dumps(KEYS))
    (terminal.home / "keys.yaml").chmod(0o600)
    words = ("live.script.json", "--api-processes", "2", "--enable-metrics", "--api-key-file", "keys.yaml")
    with terminal.serving(*words, "--max-concurrent", str(MOST_AT_ONCE)) as server:
        for number in (1, 2):
            server.wait_for(rf"(API process {number} is ready)")
        server.wait_for("(live is ready)")
        yield server
        # The end lets what runs come to its own, and takes nothing new.
        streams = [Stream(server, "a while") for _ in range(4)]
        server.process.terminate()
        assert [stream.ended() for stream in streams] == [None] * 4
        assert server.ended() == 0
        assert "Traceback" not in server.output.read_text()


def client(serving: Serving, key: str = "sk-alice", **more: Any) -> openai.OpenAI:
    more = {"max_retries": 0, "timeout": 20} | more
    return openai.OpenAI(base_url=f"{serving.address}/v1", api_key=key, **more)


def get(serving: Serving, path: str, key: str = "sk-root") -> httpx.Response:
    return httpx.get(serving.address + path, headers={"authorization": f"Bearer {key}"}, timeout=10)


def processes(serving: Serving) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(serving, "/health").json()["api_processes"]
    return found


def until(true: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def say(serving: Serving, words: str, key: str = "sk-alice") -> str | None:
    with client(serving, key) as asking:
        answer = asking.chat.completions.create(model="live", messages=[{"role": "user", "content": words}])
        return answer.choices[0].message.content


class Stream:
    """A chat that is read until it ends, in a thread."""

    def __init__(self, serving: Serving, words: str = "for ever", key: str = "sk-alice") -> None:
        self.asking = client(serving, key)
        self.events = self.asking.chat.completions.create(
            model="live", messages=[{"role": "user", "content": words}], stream=True
        )
        self.id = next(iter(self.events)).id
        self.end: BaseException | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for _ in self.events:
                pass
        except Exception as error:
            self.end = error

    def ended(self) -> BaseException | None:
        self._thread.join(15)
        assert not self._thread.is_alive()
        self.asking.close()
        return self.end

    def leave(self) -> None:
        self.events.close()
        self.asking.close()


def test_chats_are_spread_over_the_processes_and_all_answer(serving: Serving) -> None:
    streams = [Stream(serving) for _ in range(6)]
    assert [each["requests"] for each in processes(serving)] == [3, 3]
    for stream in streams:
        stream.leave()
    until(lambda: not any(each["requests"] or each["connections"] for each in processes(serving)))


def test_each_dialect_answers_and_what_is_stored_is_found(serving: Serving) -> None:
    asking = client(serving)
    assert asking.completions.create(model="live", prompt="Echo this.").choices[0].text == "Echo this."
    with anthropic.Anthropic(base_url=serving.address, api_key="sk-alice", max_retries=0) as claude:
        message = claude.messages.create(
            model="live", max_tokens=50, messages=[{"role": "user", "content": "And this."}]
        )
        assert message.content[0].text == "And this."  # type: ignore[union-attr]
    # On one kept connection: some of these are this process's, and some the other's.
    for _ in range(3):
        stored = asking.responses.create(model="live", input="Keep it.")
        assert asking.chat.completions.create(
            model="live", messages=[{"role": "user", "content": "Hi"}]
        ).choices
        assert asking.responses.retrieve(stored.id).output_text == "Keep it."
        assert asking.models.list().data
    asking.close()


def spread(serving: Serving) -> list[int]:
    """How many requests each process has begun, by the log."""
    text = serving.output.read_text()
    return [len(re.findall(rf" {re.escape(mark)}POST /v1/responses 200 ", text)) for mark in ("[1] ", "[2] ")]


def test_a_response_that_one_process_stored_is_gone_on_from_in_the_other(serving: Serving) -> None:
    before = spread(serving)
    previous = None
    for number in range(6):
        with client(serving) as asking:  # a connection of its own, so that the processes take turns
            hold = Stream(serving) if number % 2 else None
            said = asking.responses.create(
                model="live", input=f"Turn {number}.", previous_response_id=previous
            )
            if hold is not None:
                hold.leave()
            previous = said.id
            items = asking.responses.input_items.list(said.id).data
            assert len(items) == 2 * number + 1
    until(lambda: sum(spread(serving)) == sum(before) + 6)
    assert all(now > then for now, then in zip(spread(serving), before, strict=True))
    with client(serving, "sk-bob") as asking, pytest.raises(openai.NotFoundError):
        asking.responses.create(model="live", input="Mine?", previous_response_id=previous)


def test_a_conversation_is_one_for_all_processes(serving: Serving) -> None:
    with client(serving) as asking:
        conversation = asking.conversations.create()
        for number in range(3):
            with client(serving) as other:
                other.responses.create(model="live", input=f"Turn {number}.", conversation=conversation.id)
        assert len(asking.conversations.items.list(conversation.id, limit=50).data) == 6


def test_a_response_in_the_background_is_followed_and_cancelled(serving: Serving) -> None:
    with client(serving) as asking:
        running = asking.responses.create(model="live", input="for ever", background=True)
        assert running.status in ("queued", "in_progress")
        events = asking.responses.retrieve(running.id, stream=True)
        assert next(iter(events)).type == "response.created"
        events.close()
        assert asking.responses.cancel(running.id).status == "cancelled"
        stored = asking.responses.create(model="live", input="Done.", background=True)
        until(lambda: asking.responses.retrieve(stored.id).status == "completed")


def test_ollamas_chat_answers_and_one_that_says_nothing_loads(serving: Serving) -> None:
    with httpx.Client(base_url=serving.address, headers={"authorization": "Bearer sk-alice"}) as asking:
        for _ in range(2):
            body = {"model": "live", "messages": [{"role": "user", "content": "Echo."}], "stream": False}
            assert asking.post("/api/chat", json=body).json()["message"]["content"] == "Echo."
            loaded = asking.post("/api/chat", json={"model": "live"})
            assert loaded.status_code == 200
            assert loaded.json()["done_reason"] == "load"


def test_a_body_that_comes_in_pieces_is_passed_whole(serving: Serving) -> None:
    body = json.dumps({"model": "live", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    head = (
        b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-alice\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    address = urlsplit(serving.address)
    with socket.create_connection((address.hostname, address.port), 10) as connection:
        for piece in (head[:3], head[3:20], head[20:60], head[60:] + body[:7], body[7:1000], body[1000:]):
            connection.sendall(piece)
            time.sleep(0.05)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_what_is_sent_behind_an_unanswered_chat_is_answered_or_refused_with_a_sentence(
    serving: Serving,
) -> None:
    body = b'{"model": "live", "messages": [{"role": "user", "content": "hi"}]}'
    chat = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-alice\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    listing = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-alice\r\n\r\n"
    address = urlsplit(serving.address)
    came = b""
    with socket.create_connection((address.hostname, address.port), 10) as connection:
        connection.sendall(chat + chat + listing)
        while piece := connection.recv(1 << 16):
            came += piece
    assert came.count(b"HTTP/1.1 200 OK") == 2
    assert b"HTTP/1.1 421 " in came
    assert b"on another connection." in came


def test_a_request_is_cancelled_from_another_process_by_its_owner_alone(serving: Serving) -> None:
    stream = Stream(serving)
    path = f"{serving.address}/v1/requests/{stream.id}/cancel"
    refused = httpx.post(path, headers={"authorization": "Bearer sk-bob"})
    assert refused.status_code == 404
    shown = {
        key: len(get(serving, "/v1/status", key).json()["requests"])
        for key in ("sk-alice", "sk-bob", "sk-root")
    }
    assert shown == {"sk-alice": 1, "sk-bob": 0, "sk-root": 1}
    assert httpx.post(path, headers={"authorization": "Bearer sk-alice"}).status_code == 200
    assert "cancelled" in str(stream.ended())
    until(lambda: not get(serving, "/v1/status").json()["requests"])


def test_a_keys_requests_a_minute_hold_over_all_processes(serving: Serving) -> None:
    for _ in range(2):
        assert say(serving, "hi", "sk-carol") == "hi"
    for _ in range(3):
        with pytest.raises(openai.RateLimitError, match="2 requests a minute"):
            say(serving, "hi", "sk-carol")
    with client(serving, "sk-carol") as asking, pytest.raises(openai.RateLimitError):
        asking.responses.create(model="live", input="The first process counts it too.")


def test_a_keys_tokens_a_minute_hold_over_all_processes(serving: Serving) -> None:
    with pytest.raises(openai.RateLimitError, match="60 tokens a minute"):
        for _ in range(20):
            say(serving, "a while", "sk-dora")


def test_no_more_requests_run_at_once_than_are_allowed_in_all(serving: Serving) -> None:
    streams = [Stream(serving) for _ in range(MOST_AT_ONCE)]
    assert {each["requests"] for each in processes(serving)} == {MOST_AT_ONCE // 2}
    for _ in range(3):
        with pytest.raises(openai.APIStatusError, match=f"busy with {MOST_AT_ONCE} requests") as refused:
            say(serving, "hi")
        assert refused.value.status_code == 503
    streams.pop().leave()
    until(lambda: sum(each["requests"] for each in processes(serving)) == MOST_AT_ONCE - 1)
    assert say(serving, "hi") == "hi"
    for stream in streams:
        stream.leave()
    until(lambda: not any(each["requests"] for each in processes(serving)))


def counted(serving: Serving, name: str) -> float:
    lines = get(serving, "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def test_metrics_are_sums_that_outlive_a_process(serving: Serving) -> None:
    before = counted(serving, "pippin_requests_total")
    for _ in range(4):
        say(serving, "hi")
    assert counted(serving, "pippin_requests_total") == before + 4
    victim = processes(serving)[0]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: processes(serving)[0]["restarts"] > victim["restarts"])
    assert counted(serving, "pippin_requests_total") >= before + 4


def test_a_killed_process_costs_its_own_streams_alone_and_comes_back(serving: Serving) -> None:
    until(lambda: all(each["state"] == "ready" for each in processes(serving)))
    streams = [Stream(serving) for _ in range(4)]
    victim = processes(serving)[1]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: sum(stream.end is not None for stream in streams) == 2)
    left = [stream for stream in streams if stream.end is None]
    assert say(serving, "hi") == "hi"
    until(lambda: processes(serving)[1]["state"] == "ready")
    # Nobody reads what the killed one had asked for: the worker has stopped computing it.
    until(lambda: len(get(serving, "/v1/status").json()["requests"]) == 2)
    assert [stream.end for stream in left] == [None, None]
    for stream in left:
        stream.leave()
    assert processes(serving)[1]["pid"] != victim["pid"]


@pytest.mark.long
def test_a_process_that_is_stopped_is_ended_and_holds_up_nobody_for_longer(serving: Serving) -> None:
    victim, other = processes(serving)
    os.kill(victim["pid"], signal.SIGSTOP)
    until(lambda: [each["pid"] for each in processes(serving)] != [victim["pid"], other["pid"]])
    until(lambda: all(each["state"] == "ready" for each in processes(serving)))
    assert processes(serving)[1]["pid"] == other["pid"]
    assert re.search("API process 1 is stopped .SIGSTOP., and is ended", serving.output.read_text())
    assert [say(serving, "Echo this.") for _ in range(4)] == ["Echo this."] * 4


def test_a_worker_that_dies_ends_its_streams_with_a_sentence_everywhere(serving: Serving) -> None:
    streams = [Stream(serving) for _ in range(4)]
    with pytest.raises(openai.APIError, match=r"(?i)process of (the )?model|died|ended"):
        say(serving, "die")
    ends = [str(stream.ended()) for stream in streams]
    assert all("live" in end for end in ends), ends
    assert say(serving, "hi") == "hi"


def test_a_model_that_is_unloaded_is_loaded_again_by_the_next_chat(serving: Serving) -> None:
    headers = {"authorization": "Bearer sk-root"}
    for _ in range(2):
        done = httpx.post(f"{serving.address}/v1/models/live/unload", headers=headers, timeout=20)
        assert done.status_code == 200
        assert say(serving, "hi") == "hi"


def test_changed_settings_hold_in_all_processes(serving: Serving) -> None:
    headers = {"authorization": "Bearer sk-root"}
    path = f"{serving.address}/v1/settings"
    assert httpx.patch(path, json={"max_choices": 1}, headers=headers).status_code == 200

    def refused() -> bool:
        with client(serving) as asking:
            try:
                asking.chat.completions.create(
                    model="live", n=2, messages=[{"role": "user", "content": "hi"}]
                )
            except openai.BadRequestError as error:
                return "`n` is 2" in str(error)
        return False

    until(refused)
    assert refused()
    assert httpx.patch(path, json={"max_choices": 16}, headers=headers).status_code == 200
    until(lambda: not refused())


def test_a_model_that_nobody_has_is_refused_by_name(serving: Serving) -> None:
    with client(serving) as asking, pytest.raises(openai.NotFoundError, match="nothing-here"):
        asking.chat.completions.create(model="nothing-here", messages=[{"role": "user", "content": "hi"}])


def test_lines_of_the_log_have_the_number_of_their_process(serving: Serving) -> None:
    say(serving, "hi")
    serving.wait_for(r"INFO +(\[[12]\] POST /v1/chat/completions 200)")


def test_connections_leave_no_descriptors_behind(serving: Serving) -> None:
    everyone = [serving.process.pid, *(each["pid"] for each in processes(serving))]

    def held() -> int:
        return sum(psutil.Process(pid).num_fds() for pid in everyone)

    say(serving, "hi")
    until(lambda: not any(each["connections"] for each in processes(serving)))
    before = held()
    for _ in range(15):
        with client(serving) as asking:
            asking.models.list()
            asking.chat.completions.create(model="live", messages=[{"role": "user", "content": "hi"}])
            asking.models.list()
    until(lambda: held() <= before + 1)


def test_an_option_that_several_processes_can_not_honour_is_refused_at_the_start(tmp_path: Path) -> None:
    flags = ("--api-processes", "2", "--compat", "mlx-vlm")
    done = Terminal(tmp_path).run("serve", "--port", "0", *flags)
    assert done.returncode != 0
    assert "--api-processes can't be used together with --compat mlx-vlm" in done.stderr


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mcp-config", Settings(server=ServerOptions(mcp_config="tools.json"))),
        ("compat mlx-vlm", Settings(server=ServerOptions(), compat="mlx-vlm")),
    ],
)
def test_what_several_processes_can_not_honour_is_refused_by_name(name: str, settings: Settings) -> None:
    with pytest.raises(ServerError, match=f"can't be used together with --{name}"):
        check_options(settings)


@pytest.mark.long
def test_a_real_model_says_in_each_process_what_it_says_in_the_first(
    demo_model: Path, tmp_path: Path
) -> None:
    terminal = Terminal(tmp_path)
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 24,
    }

    def say_at(path: str) -> str:
        answer = httpx.post(server.address + path, json=body, timeout=60).json()
        return str(answer["choices"][0]["message"]["content"])

    with terminal.serving(str(demo_model), "--api-processes", "2") as server:
        server.wait_for(r"(\S+) is ready after", 120)
        until(lambda: all(each["state"] == "ready" for each in processes(server)), 60)
        first = say_at("/api/v0/chat/completions")
        assert first
        assert {say_at("/v1/chat/completions") for _ in range(4)} == {first}
        until(lambda: len(re.findall(r" \[[12]\] POST /v1/chat/comp\S+ 200", server.output.read_text())) == 4)


def test_a_first_process_that_is_killed_leaves_no_folder_behind(tmp_path: Path) -> None:
    model = write_script(tmp_path, {"when": {"user": "."}, "say": "yes"})
    (temporary := tmp_path / "tmp").mkdir()
    given = {"TMPDIR": str(temporary)}
    with running_server(tmp_path, str(model), "--api-processes", "2", variables=given, kill=True):
        assert list(temporary.glob("pippin-*"))
    deadline = time.monotonic() + 20
    while list(temporary.glob("pippin-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
