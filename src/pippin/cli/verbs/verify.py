"""`pippin verify`: checks that a model is served with its publisher's quality."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import msgspec

from pippin.cli.arguments import JSON, SERVER, argument, of_catalog, verb
from pippin.cli.local import open_catalog, run_verification, settings_of
from pippin.cli.report import as_page, as_text
from pippin.cli.terminal import progress, say
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.verified import keep
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import SECTIONS, Report, Verification


@verb(
    "verify",
    "Check that a model is served with its publisher's quality: its files, tokens, template, numbers, tool calls and "
    "answers. Changes nothing. Exits with 1 if it finds faults.",
    argument("model", help="a name, a folder, or a repository of the hub, which is downloaded"),
    argument("--only", action="append", choices=SECTIONS, help="this section; may be given several times"),
    argument(
        "--against", metavar="MODEL", help="compare with this model, such as the one before quantisation"
    ),
    JSON,
    argument("--html", type=Path, metavar="FILE", help="write a page that can be shared"),
    argument(
        "--lm-eval",
        metavar="TASKS",
        help="tasks of lm-eval too, on the running server, or on one that is started",
    ),
    argument("--server", help="address of the server for lm-eval; the one running here if not given"),
    SERVER[1],
    of_catalog,
)
def verify(parsed: Namespace) -> int:
    sections = tuple(name for name in SECTIONS if name in (parsed.only or SECTIONS))
    if parsed.lm_eval and importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            f'--lm-eval {parsed.lm_eval}: the library lm-eval is not installed. Install it: pip install "lm-eval[api]"'
        )
    catalog = open_catalog(settings_of(parsed))

    def found(name: str) -> WorkerSpec:
        with progress(name, bytes_counted=True) as tell:
            info = asyncio.run(catalog.ensure(name, tell, by_operator=True))
        if info.path is None or info.kind == "scripted":
            raise ServerError("unsupported", f"{info.id} is a script and has nothing to verify.")
        return WorkerSpec(info=info, options=msgspec.to_builtins(catalog.options_for(info)))

    spec = found(parsed.model)
    against = found(parsed.against).info.path if parsed.against else None
    with progress(f"Verifying {spec.info.id}:") as tell:
        asked = Verification(sections=sections, against=against)
        report = run_verification(spec, asked, tell)
    if sections == SECTIONS:
        keep(report)
    if parsed.html:
        parsed.html.expanduser().write_text(as_page(report), "utf-8")
    say(json.dumps(msgspec.to_builtins(report), indent=2) if parsed.json else as_text(report))
    failed = _evaluate(parsed, report) if parsed.lm_eval else 0
    return 1 if report.count("fault") or failed else 0


def _evaluate(parsed: Namespace, report: Report) -> int:
    from pippin.cli.chat.server import reached

    parsed.keep = False
    with reached(parsed, parsed.model) as server:
        key = parsed.api_key or environment.client_key()
        return _run_lm_eval(parsed.lm_eval, server.client.address, server.model, report.folder, key)


def _run_lm_eval(tasks: str, address: str, model: str, folder: str, key: str | None) -> int:
    """Run tasks of the library lm-eval on a server's completions; it prints its table. Returns its exit status."""
    server = f"model={model},base_url={address}/v1/completions,tokenizer={folder},num_concurrent=8"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", server]
    # lm-eval reads the key from this variable alone.
    variables = {**environment.variables(), "OPENAI_API_KEY": key or "none"}
    return subprocess.run([*command, "--tasks", tasks], env=variables, check=False).returncode
