"""`pippin serve` from its start to its end, with the scripted model."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from msgspec import structs

from pippin.catalog import Catalog
from pippin.catalog.scan import CatalogRoots
from pippin.cli.greeting import EXAMPLES, curl_line
from pippin.cli.verbs import serve
from pippin.cli.verbs.running_server import rewritten
from pippin.cli.verbs.serve import check_beside, check_models
from pippin.config.errors import ConfigError, install_command
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from tests.catalog.folders import write_hub_model, write_model
from tests.cli.serving import SECONDS, Serving, Terminal, terminal
from tests.engines.speech.recordings import wav
from tests.runtime.processes import gone_within

__all__ = ["terminal"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    return Terminal(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def running(home: Terminal) -> Iterator[Serving]:
    """One server in `home` for the tests that leave it as it was."""
    with home.serving("scripted", "--continuous-batching", "--use-paged-cache") as serving:
        serving.wait_for(r"(scripted) is ready after")
        yield serving


def test_the_printed_curl_line_is_answered(home: Terminal, running: Serving) -> None:
    line = running.wait_for(r"\n  (curl .*)\n")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]
    for kind in EXAMPLES:  # a scripted model does what all others do
        (home.home / "speech.wav").write_bytes(wav(0.5, 1))
        line = curl_line(running.address, "scripted", key=False, kind=kind)
        subprocess.run(
            ["bash", "-c", line.replace("curl ", "curl --fail --noproxy '*' ", 1)],
            cwd=home.home,
            capture_output=True,
            check=True,
            timeout=SECONDS,
        )


def test_decide_shows_the_likeliest_answer_first(home: Terminal, running: Serving) -> None:
    words = ["decide", "--question", "Who reads it?", "--labels", "sales, billing"]
    shown = home.run(*words, "A question about billing.").stdout.splitlines()
    assert [line.split()[-2:] for line in shown] == [
        ["ANSWER", "PROBABILITY"],
        ["billing", "0.800"],
        ["sales", "0.200"],
    ]
    piped = subprocess.run(
        [sys.executable, "-m", "pippin", "decide", "--question", "Is it?", "--json"],
        env=home.environment,
        input="A text.",
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    assert json.loads(piped.stdout) == {"Is it?": {"yes": 0.5, "no": 0.5}}


def test_a_model_is_served_by_its_path_under_a_short_name(terminal: Terminal) -> None:
    script = terminal.home / "demo.script.json"
    script.write_text('{"rules": [{"say": "Here."}]}')
    with terminal.serving(str(script)) as serving:
        name = serving.wait_for(r"\nModel: (.*)\n")
        assert serving.wait_for(r"(\S+) is ready after") == name
        assert "/" not in name
        assert json.loads(terminal.run("show", name).stdout)["id"] == name
        for model in (name, str(script), "default"):
            body = {"model": model, "messages": [{"role": "user", "content": "Are you?"}]}
            answer = httpx.post(f"{serving.address}/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "Here."
        [used] = json.loads(terminal.run("ps", "--usage", "--json").stdout)
        assert (used["model"], used["requests"]) == (name, 3)
        assert terminal.run("ps", "--usage").stdout.splitlines()[1].split()[1:3] == [name, "3"]


def test_the_verbs_for_the_running_server_find_it(terminal: Terminal) -> None:
    with terminal.serving("scripted", "--lazy-load") as serving:
        assert "No model is in memory." in terminal.run("ps").stdout
        assert terminal.run("load", "script", "--pin").stdout == "scripted is loaded.\n"
        listed = terminal.run("ps").stdout.splitlines()[1].split()
        assert listed[:3] == ["scripted", "loaded", "(pinned)"]
        assert terminal.run("unload", "scripted").stdout == "scripted is unloaded.\n"
        assert "was not loaded" in terminal.run("unload", "scripted").stdout
        assert "No model is in memory." in terminal.run("ps").stdout
        assert terminal.run("load", "nothing").returncode == 1
        assert terminal.run("stop").stdout == f"{serving.address} has stopped.\n"
        assert serving.ended() == 0
    assert list((terminal.home / ".cache/pippin/run").iterdir()) == []


def test_ps_says_what_a_template_changes_of_earlier_turns() -> None:
    told = rewritten({"metadata": {"rewrites": ["thoughts", "tools"]}})
    assert told == "its template changes thoughts, tools of earlier turns, computed again from there"
    assert rewritten({"metadata": {"rewrites": []}}) is None


def test_without_the_key_ps_asks_for_it_instead_of_seeing_nothing(terminal: Terminal) -> None:
    with terminal.serving("scripted", "--api-key", "secret") as serving:
        serving.wait_for(r"(scripted) is ready after")
        assert "Everyone on this machine can read the API key" in serving.output.read_text()
        assert "asks for a key" in terminal.run("ps").stderr
        assert "scripted" in terminal.run("ps", "--api-key", "secret").stdout


def test_all_that_is_written_beside_the_greeting_is_json_where_that_is_asked_for(terminal: Terminal) -> None:
    script = terminal.home / "slow.script.json"
    script.write_text('{"load_seconds": 3}')
    words = [str(script), "/no/such/folder", "--port", "0", "--log-format", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pippin", "serve", *words],
        env=terminal.environment,
        cwd=terminal.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    assert process.stderr is not None
    for text in process.stderr:
        lines.append(json.loads(text)["message"])
        if "/no/such/folder is not ready" in text:
            break
    process.terminate()
    process.communicate()
    assert any(line.startswith("Loading slow") for line in lines), lines


def test_it_starts_without_a_model(terminal: Terminal) -> None:
    with terminal.serving() as serving:
        assert httpx.get(f"{serving.address}/health").json()["status"] == "healthy"
        assert "No model is named" in serving.output.read_text()


def test_a_folder_that_can_not_be_written_stops_nothing(terminal: Terminal) -> None:
    (terminal.home / "file").touch()
    terminal.environment["PIPPIN_HOME"] = str(terminal.home / "file" / "folder")
    with terminal.serving("scripted") as serving:
        serving.wait_for(r"WARNING (`pippin ps` and `stop` can't find this server)")
        serving.wait_for(r"(scripted) is ready after")


def test_a_model_that_is_not_here_stops_nothing(terminal: Terminal) -> None:
    with terminal.serving("scripted", "/no/such/folder", "--offline") as serving:
        serving.wait_for(r"(/no/such/folder) is not ready: ")
        assert httpx.get(f"{serving.address}/health").status_code == 200


def test_where_no_named_model_is_there_nothing_is_served(terminal: Terminal) -> None:
    found = terminal.run("serve", "/no/such/folder", "./neither", "--port", "0")
    assert found.returncode == 2
    assert found.stderr.startswith("pippin: /no/such/folder is not there. Give the path of a model's folder.")
    assert "./neither is not there" in found.stderr


@pytest.mark.parametrize(
    "words", [("--model", "nope"), ("--compat", "vllm-mlx", "nope"), ("org/nope", "--offline")]
)
def test_a_name_that_no_model_has_ends_the_start(terminal: Terminal, words: tuple[str, ...]) -> None:
    found = terminal.run("serve", *words, "--port", "0")
    assert found.returncode == 2
    assert found.stderr.startswith("pippin: The model '")
    assert "nope" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_name_that_may_lead_to_a_model_lets_the_server_start(tmp_path: Path) -> None:
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    (write_hub_model(roots.hub, "org/damaged") / "config.json").unlink()
    repository, alias, damaged = (ModelEntry(path=path) for path in ("org/model", "qwen", "org/damaged"))
    lazy = ModelEntry(path="org/model", preload=False)
    for entry, offline in ((repository, False), (alias, False), (damaged, True), (lazy, True)):
        aliases = {"qwen": "org/model"}
        catalog = Catalog(ServerOptions(models=(entry,), offline=offline, aliases=aliases), roots)
        check_models((entry,), catalog)


def test_a_port_in_use_is_one_line(terminal: Terminal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = terminal.run("serve", "--port", str(port))
    assert done.returncode != 0
    assert done.stderr.startswith(f"pippin: Port {port} of 127.0.0.1 is in use")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["draft_model_path", "adapter_path"])
@pytest.mark.parametrize("words", ["nope", "./nope", "/no/such/folder"])
def test_a_draft_model_or_an_adapter_that_can_not_be_had_ends_the_start(
    tmp_path: Path, option: str, words: str
) -> None:
    catalog = Catalog(ServerOptions(), CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports"))
    entry = ModelEntry(path="org/model", options=ModelOptions(**{option: words}))
    with pytest.raises(ConfigError, match=f"^{option}: '{words}' is no folder and no model"):
        check_beside(ServerOptions(models=(entry,)), catalog)


def test_a_draft_model_that_is_here_or_may_be_fetched_lets_the_server_start(tmp_path: Path) -> None:
    roots = CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports")
    offline = ServerOptions(offline=True)
    for words, server in (("org/draft", ServerOptions()), (str(tmp_path), offline)):
        check_beside(
            structs.replace(server, model_defaults=ModelOptions(draft_model_path=words)),
            Catalog(server, roots),
        )
    with pytest.raises(ConfigError, match="without --offline"):
        named = structs.replace(offline, model_defaults=ModelOptions(adapters={"mine": "org/adapter"}))
        check_beside(named, Catalog(offline, roots))


def test_needless_flags_are_a_line_in_the_log(running: Serving) -> None:
    running.wait_for(r"INFO +(--continuous-batching) is accepted and not needed")
    running.wait_for(r"INFO +(--use-paged-cache) is accepted and not needed")


def test_launch_is_serve_with_the_other_servers_defaults(terminal: Terminal) -> None:
    (terminal.home / "config.yaml").write_text(
        "server:\n  host: 127.0.0.1\nmodels:\n- model_path: scripted\n"
    )
    with terminal.serving("--config", "config.yaml", verb="launch") as serving:
        serving.wait_for(r"(scripted) is ready after")
        settings = httpx.get(f"{serving.address}/v1/settings").json()["current"]
        fallbacks = settings["fallbacks"]  # which rank below what the checkpoint says
        assert (fallbacks["temperature"], fallbacks["top_p"]) == (0.7, 0.95)
        for named in ({"model": "local-text-model"}, {}):  # as its README's clients do
            body = {**named, "messages": [{"role": "user", "content": "Hello"}]}
            assert (
                httpx.post(f"{serving.address}/v1/chat/completions", json=body).json()["model"] == "scripted"
            )


def test_the_log_can_be_json_and_go_to_a_file(terminal: Terminal) -> None:
    with terminal.serving("scripted", "--log-format", "json", "--log-file", "log") as serving:
        serving.wait_for(r"(scripted) is ready after")
        httpx.get(f"{serving.address}/v1/models", headers={"x-request-id": "mine"})
        serving.wait_for(r"id=(mine)")
    lines = [json.loads(line) for line in (terminal.home / "log").read_text().splitlines()]
    assert any("mine" in line["message"] for line in lines)
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_what_it_left(terminal: Terminal, number: signal.Signals) -> None:
    with terminal.serving("scripted") as serving:
        serving.wait_for(r"(scripted) is ready after")
        serving.process.send_signal(number)
        assert serving.ended() == 0
    assert list((terminal.home / ".cache/pippin/run").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("later", [0.0, 0.1, 0.3])
def test_a_signal_during_the_start_ends_the_worker_too(
    terminal: Terminal, number: signal.Signals, later: float
) -> None:
    words = [sys.executable, "-m", "pippin", "serve", "scripted", "--port", "0"]
    with subprocess.Popen(
        words,
        env=terminal.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that began the tests in the background has them, and what they begin, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as server:
        while not (workers := psutil.Process(server.pid).children()):
            assert server.poll() is None
        time.sleep(later)
        server.send_signal(number)
        output, _ = server.communicate(timeout=SECONDS)
    assert "Traceback" not in output
    assert all(gone_within(worker.pid, 5.0) for worker in workers)


def test_a_hangup_reads_the_file_again_and_names_what_needs_a_restart(terminal: Terminal) -> None:
    file = terminal.home / "pippin.yaml"
    file.write_text("rate_limit: 0\nmax_num_seqs: 4\n")
    with terminal.serving("scripted", "--config", "pippin.yaml") as serving:
        serving.wait_for(r"(scripted) is ready after")
        file.write_text("rate_limit: 1\nmax_num_seqs: 8\n")
        serving.process.send_signal(signal.SIGHUP)
        serving.wait_for(r"INFO +Settings were read again; changed: (rate_limit)\.")
        serving.wait_for(r"WARNING A restart is needed to change (.*max_num_seqs)")
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
        answers = [httpx.post(f"{serving.address}/v1/chat/completions", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        file.write_text("rate_limit: many\n")
        serving.process.send_signal(signal.SIGHUP)
        serving.wait_for(r"The settings stay as they were: (pippin.yaml: rate_limit: `many` is not)")


def test_settings_change_while_it_runs(running: Serving) -> None:
    settings = f"{running.address}/v1/settings"
    before = httpx.get(settings).json()["current"]["max_request_tokens"]
    changed = httpx.patch(settings, json={"max_request_tokens": 2, "port": 1, "prot": 2}).json()
    assert "max_request_tokens" in changed["applied"]
    assert changed["needs_restart"] == ["port"]
    assert "Did you mean `port`?" in changed["rejected"]["prot"]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    refused = httpx.post(f"{running.address}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "at most 2" in refused.json()["error"]["message"]
    restored = httpx.patch(settings, json={"max_request_tokens": before}).json()
    assert "max_request_tokens" in restored["applied"]


def test_a_failed_load_is_told_once(terminal: Terminal) -> None:
    folder = write_model(terminal.home / "short")
    with terminal.serving(str(folder)) as serving:
        serving.wait_for(r"(can't be read)")
        body = {"model": "short", "messages": [{"role": "user", "content": "Hello."}]}
        refused = httpx.post(f"{serving.address}/v1/chat/completions", json=body)
        serving.wait_for(r"(POST /v1/chat/completions 424)")
        said = serving.output.read_text()
    assert refused.status_code == 424
    told = [line for line in said.splitlines() if "can't be read" in line and "POST" not in line]
    assert len(told) == 1, said


def test_where_mlx_is_not_installed_the_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    catalog = Catalog(ServerOptions(), CatalogRoots(tmp_path / "hub", tmp_path / "imports"))
    with pytest.raises(ConfigError, match=re.escape(install_command("cpu"))):
        serve.check(ServerOptions(), catalog)
    script = tmp_path / "a.script.json"
    script.write_text("{}")
    serve.check(ServerOptions(models=(ModelEntry(path=str(script)),)), catalog)
