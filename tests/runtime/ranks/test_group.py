"""A group of ranks as real processes: what clients get, and what becomes of a request whose rank is lost."""

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.runtime.ranks.places import members, places
from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server

ASKED = {"model": "tiny", "prompt": "abcabc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def served(folder: Path) -> Path:
    return tiny_model("llama", folder / "models" / "tiny", num_key_value_heads=4)


def said(client: httpx.Client, **more: object) -> str:
    reply = client.post("/v1/completions", json={**ASKED, **more})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def ranks_of(home: Path) -> list[psutil.Process]:
    """The processes of the server's ranks; rank 0 is started first."""
    log = (home / "server.log").read_text()
    assert log
    mine = [
        each
        for each in psutil.process_iter(["environ", "cmdline"])
        if "pippin.worker" in (each.info["cmdline"] or [])
        and (each.info["environ"] or {}).get("HOME") == str(home)
    ]
    return sorted(mine, key=lambda each: each.create_time())


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_group_and_the_next_one_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    served(tmp_path)
    words = ["tiny", "--model-dir", str(tmp_path / "models"), "--ranks", "2"]
    long = {**ASKED, "max_tokens": 300}
    with running_server(tmp_path, *words) as address, httpx.Client(base_url=address, timeout=120) as client:
        expected = said(client, max_tokens=300)
        lost = ranks_of(tmp_path)
        assert len(lost) == 2
        with client.stream("POST", "/v1/completions", json={**long, "stream": True}) as stream:
            events = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data:"))
            first = next(events)
            os.kill(lost[1].pid, number)
            rest = list(events)
        assert rest.pop() == "[DONE]"
        assert "".join(json.loads(each)["choices"][0]["text"] for each in (first, *rest)) == expected
        log = (tmp_path / "server.log").read_text()
        told = re.search(r"The process of model 'tiny' \(rank [01] of 2\) died: .*", log)
        assert told is not None
        if number == signal.SIGKILL:
            assert "(rank 1 of 2) died: it was ended by signal 9" in told[0]
        assert not {each.pid for each in ranks_of(tmp_path)} & {each.pid for each in lost}
    psutil.wait_procs(lost, timeout=10)
    assert ranks_of(tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_ranks_do_not_have_is_refused_by_name(tmp_path: Path) -> None:
    served(tmp_path)
    words = ["tiny", "--model-dir", str(tmp_path / "models"), "--ranks", "3"]
    with running_server(tmp_path, *words, ready=r"could not|cannot be split") as address:
        reply = httpx.post(f"{address}/v1/completions", json=ASKED, timeout=120)
    assert reply.status_code == 424
    assert "3 ranks cannot share evenly" in reply.json()["error"]["message"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_grammars_choices_and_scored_prompts_work_over_ranks(tmp_path: Path) -> None:
    served(tmp_path)
    words = ["tiny", "--model-dir", str(tmp_path / "models")]
    asked: list[dict[str, object]] = [
        {"guided_regex": "[0-9]{3}-[a-f]{4}", "max_tokens": 20, "ignore_eos": False},
        {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 12},
        {"echo": True, "logprobs": 2, "max_tokens": 1, "prompt": "a longer prompt, whose tokens are scored"},
        {"max_tokens": 0, "echo": True, "logprobs": 0},
    ]

    def answers(*more: str) -> list[list[dict[str, Any]]]:
        with running_server(tmp_path, *words, *more) as address:
            found = [
                httpx.post(f"{address}/v1/completions", json={**ASKED, **each}, timeout=120) for each in asked
            ]
        assert [each.status_code for each in found] == [200] * 4, found[0].text
        return [each.json()["choices"] for each in found]

    alone, together = answers("--cpu-kernels", "off"), answers("--ranks", "2")
    for mine, theirs in zip(alone, together, strict=True):
        assert [each["text"] for each in mine] == [each["text"] for each in theirs]
        for one, other in zip(mine, theirs, strict=True):
            if one["logprobs"] is not None:
                pairs = zip(
                    one["logprobs"]["token_logprobs"], other["logprobs"]["token_logprobs"], strict=True
                )
                assert all(a == b or abs(a - b) < 1e-4 for a, b in pairs)
    assert re.fullmatch("[0-9]{3}-[a-f]{4}", together[0][0]["text"])
    assert len(together[1]) == 3


FAKE_SSH = """#!/bin/sh
# Does as ssh does: the words after the machine's name become one line for a shell there.
echo "$1" >> {folder}/reached
shift
exec sh -c "exec $*"
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_rank_on_another_machine_is_started_by_a_command(tmp_path: Path) -> None:
    folder = served(tmp_path)
    ssh = tmp_path / "ssh"
    ssh.write_text(FAKE_SSH.format(folder=tmp_path))
    words = ["tiny", "--model-dir", str(folder.parent)]
    with running_server(tmp_path, *words) as address, httpx.Client(base_url=address, timeout=120) as client:
        expected = said(client)
    # On Linux all of 127.0.0.0/8 is this machine, and 127.0.0.2 is not one of the names that Pippin knows as such.
    far = ["--machines", "127.0.0.1,127.0.0.2"]
    command = f"sh {ssh} {{machine}} {sys.executable} -m pippin worker {{model}} {{path}}"
    with (
        running_server(tmp_path, *words, *far, "--machine-command", command) as address,
        httpx.Client(base_url=address, timeout=120) as client,
    ):
        assert said(client) == expected
        assert (tmp_path / "reached").read_text() == "127.0.0.2\n"
        [rank] = [each for each in ranks_of(tmp_path) if each.cmdline()[3] == "-"]
        rank.kill()
        rank.wait(10)
        while (reply := client.post("/v1/completions", json=ASKED)).status_code == 500:
            # Its loss is not noticed yet: the request was given to the group that ends.
            assert "(rank 1 of 2, on 127.0.0.2) died: it was ended by signal 9" in reply.text
        assert reply.json()["choices"][0]["text"] == expected  # by a new group
    assert ranks_of(tmp_path) == []


def spec(**options: object) -> WorkerSpec:
    return WorkerSpec(info=ModelInfo(id="org/it's; rm -rf", kind="language", path="/a b"), options=options)


def test_ranks_on_one_machine_have_ports_of_their_own_and_one_secret() -> None:
    found = places(spec(ranks=3))
    assert [rank.rank for rank in found] == [0, 1, 2]
    assert len({*found[0].hosts, found[0].control, found[0].coordinator}) == 5
    assert len({rank.secret for rank in found}) == 1


def test_a_command_is_quoted_for_both_shells() -> None:
    [here, far] = members(spec(machines=["127.0.0.1", "127.0.0.2"]))
    assert (here.command, here.machine, far.machine) == (None, None, "127.0.0.2")
    assert far.title == '"org/it\'s; rm -rf" (rank 1 of 2, on 127.0.0.2)'
    assert far.command is not None
    words = shlex.split(far.command)
    assert words[:4] == ["ssh", "-T", "-o", "BatchMode=yes"]
    assert words[4:7] == ["127.0.0.2", "pippin", "worker"]
    assert shlex.split(" ".join(words[5:])) == ["pippin", "worker", "org/it's; rm -rf", "/a b"]


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"machines": ["127.0.0.1", "127.0.0.2"], "ranks": 3}, "ranks", "leave out --ranks"),
        ({"machines": ["192.0.2.1", "127.0.0.1"]}, "machines", "must be this machine's own address"),
        ({"machines": ["127.0.0.1", "no-such-machine.invalid"]}, "machines", "no address that is known here"),
        (
            {"machines": ["127.0.0.1", "127.0.0.2"], "machine_command": "ssh {host}"},
            "machine_command",
            "{machine}",
        ),
    ],
)
def test_machines_that_cannot_be_had_are_refused_by_name(
    options: dict[str, object], param: str, words: str
) -> None:
    with pytest.raises(ServerError, match=re.escape(words)) as raised:
        members(spec(**options))
    assert raised.value.report.kind == "load_failed"
    assert raised.value.report.param == param
