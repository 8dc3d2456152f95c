"""A cluster of two machines, both of them this one: what `pippin join` starts, and what `--cluster` places there."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.running_server import running_server
from tests.runtime.cluster.nodes import end, joined, nodes, wait_for, workers
from tests.service.doubles import write_script

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

REPLICA = 400_000_000  # bytes: one fits a node


def replicas(home: Path, model: Path, address: str, *more: str) -> "contextlib.AbstractContextManager[str]":
    words = (str(model), "--cluster", address, "--replicas", "2", "--memory-bytes", str(REPLICA))
    return running_server(home, *words, *more)


def test_replicas_are_placed_and_come_back_elsewhere(home: Path, address: str) -> None:
    model = write_script(home, {"when": {"user": "."}, "say": "one two three four five", "gap": 0.1})
    before = {each.pid for each in workers(home)}
    with joined(home, address) as second, joined_later(home, address) as join_third:
        wait_for("the second node", lambda: nodes(home, address) == 2)
        with (
            replicas(home, model, address) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        ):
            # The server is ready with the first of them.
            wait_for("two", lambda: len([each for each in workers(home) if each.pid not in before]) == 2)

            def ask(number: int) -> str | None:
                messages = [{"role": "user", "content": f"question {number}"}]
                answer = client.chat.completions.create(model="default", messages=messages)  # type: ignore[call-overload]
                return str(answer.choices[0].message.content)

            assert {ask(number) for number in range(4)} == {"one two three four five"}
            # A machine is lost while it answers: nothing of a whole answer was sent, so another gives it.
            texts: list[str | None] = []
            threads = [threading.Thread(target=lambda n=n: texts.append(ask(n))) for n in range(6)]
            for thread in threads:
                thread.start()
            time.sleep(0.3)
            end(second)
            for thread in threads:
                thread.join()
            assert texts == ["one two three four five"] * 6
            # There is no room for it on the first machine; on a third there is.
            join_third()
            log = home / "server.log"
            wait_for("two replicas", lambda: "A replica of model is there again." in log.read_text())
            assert ask(9) == "one two three four five"
            # A worker that dies is started again, too.
            victim = next(each for each in workers(home) if each.pid not in before)
            victim.send_signal(signal.SIGKILL)
            wait_for(
                "another worker", lambda: len({w.pid for w in workers(home)} - before - {victim.pid}) == 2
            )
            assert ask(10) == "one two three four five"
        wait_for("the end of all workers", lambda: not {each.pid for each in workers(home)} - before)
        assert "A replica is placed on" in log.read_text()


def test_a_replica_without_room_waits_while_the_other_serves(home: Path, address: str) -> None:
    model = write_script(home, {"when": {"user": "."}, "say": "one two three"})
    before = {each.pid for each in workers(home)}
    with (
        replicas(home, model, address) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):

        def ask() -> str | None:
            messages = [{"role": "user", "content": "go"}]
            answer = client.chat.completions.create(model="default", messages=messages)  # type: ignore[call-overload]
            return str(answer.choices[0].message.content)

        assert ask() == "one two three"
        assert len({each.pid for each in workers(home)} - before) == 1
        wait_for("the refusal", lambda: "No machine of the cluster has" in (home / "server.log").read_text())
        assert ask() == "one two three"
        with joined(home, address):
            wait_for("the second replica", lambda: len({each.pid for each in workers(home)} - before) == 2)
            assert ask() == "one two three"
    wait_for("the end of all workers", lambda: not {each.pid for each in workers(home)} - before)


def test_replicas_share_a_machine_unasked(home: Path, address: str) -> None:
    model = write_script(home, {"when": {"user": "."}, "say": "one two three"})
    before = {each.pid for each in workers(home)}
    with running_server(home, str(model), "--cluster", address, "--replicas", "2"):
        wait_for("two replicas", lambda: len({each.pid for each in workers(home)} - before) == 2)


@pytest.mark.parametrize("stopped", ["ray::Host", "pippin.runtime.cluster.bridge"])
def test_what_stands_between_and_is_stopped_costs_no_whole_answer(
    home: Path, address: str, stopped: str
) -> None:
    model = write_script(home, {"when": {"user": "."}, "say": "one two three four five", "gap": 0.2})
    before = {each.pid for each in workers(home)}
    words = ("--cluster", address, "--replicas", "2", "--memory-bytes", "100000000")
    with (
        running_server(home, str(model), *words) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=90) as client,
    ):
        texts: list[str | None] = []

        def ask() -> None:
            messages = [{"role": "user", "content": "go"}]
            answer = client.chat.completions.create(model="default", messages=messages)  # type: ignore[call-overload]
            texts.append(answer.choices[0].message.content)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.4)
        of_home = [
            each
            for each in psutil.process_iter(["cmdline", "environ"])
            if stopped in " ".join(each.info["cmdline"] or [])
            and (each.info["environ"] or {}).get("HOME") == str(home)
        ]
        assert of_home
        of_home[0].suspend()
        try:
            for thread in threads:
                thread.join(60)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                of_home[0].resume()
        assert texts == ["one two three four five"] * 6
    wait_for("the end of all workers", lambda: not {each.pid for each in workers(home)} - before)


@contextlib.contextmanager
def joined_later(home: Path, address: str) -> Iterator["object"]:
    """Gives a function that starts one more node."""
    with contextlib.ExitStack() as nodes:
        yield lambda: nodes.enter_context(joined(home, address))


def test_a_real_model_says_in_the_cluster_what_it_says_here(
    home: Path, address: str, demo_model: Path
) -> None:
    def said(url: str) -> str | None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
            answer = client.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": "Name three colours."}],
                temperature=0,
                max_tokens=24,
            )
            return answer.choices[0].message.content

    with running_server(home, str(demo_model)) as url:
        here = said(url)
    words = ("--cluster", address, "--memory-bytes", str(REPLICA))
    with running_server(home, str(demo_model), *words) as url:
        assert said(url) == here


def test_who_has_not_the_token_gets_nothing_from_the_cluster(
    home: Path, address: str, tmp_path: Path
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    model = write_script(tmp_path, {"when": {"user": "."}, "say": "no"})
    words = (str(model), "--cluster", address, "--memory-bytes", str(REPLICA))
    with running_server(tmp_path, *words, ready="cannot run"):
        log = (tmp_path / "server.log").read_text()
    assert "No Ray cluster is reached at" in log
