"""`pippin verify`: checks that a model is served with its publisher's quality, and reports it as text or as a page."""

import importlib.util
import subprocess
import sys
import time
from argparse import Namespace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec

from pippin import __version__
from pippin.cli.arguments import JSON, SERVER, argument, of_catalog, verb
from pippin.cli.local import fetched, open_catalog, settings_of
from pippin.cli.terminal import Progress, as_json, progress, say
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.verified import keep
from pippin.core.decoding import json_decoder
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import SECTIONS, Report, Step, Verification, VerificationFailed


@verb(
    "verify",
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
    epilog="It looks at all that --only names, and changes nothing. Faults end it with status 1.",
)
def verify(parsed: Namespace) -> int:
    sections = tuple(name for name in SECTIONS if name in (parsed.only or SECTIONS))
    if parsed.lm_eval and importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            f'--lm-eval {parsed.lm_eval}: the library lm-eval is not installed. Install it: pip install "lm-eval[api]"'
        )
    catalog = open_catalog(settings_of(parsed))

    def found(name: str) -> WorkerSpec:
        info = fetched(catalog, name, name)
        if info.path is None or info.kind == "scripted":
            raise ServerError("unsupported", f"{info.id} is a script and has nothing to verify.")
        return WorkerSpec(info=info, options=msgspec.to_builtins(catalog.options_for(info)))

    spec = found(parsed.model)
    against = found(parsed.against).info.path if parsed.against else None
    with progress(f"Verifying {spec.info.id}:") as tell:
        asked = Verification(sections=sections, against=against)
        report = _run(spec, asked, tell)
    # First of all, as files may not be writable.
    say(as_json(report) if parsed.json else as_text(report))
    if sections == SECTIONS:
        keep(report)
    if parsed.html:
        parsed.html.expanduser().write_text(as_page(report), "utf-8")
    failed = _evaluate(parsed, report) if parsed.lm_eval else 0
    return 1 if report.count("fault") or failed else 0


def _run(spec: WorkerSpec, asked: Verification, tell: Progress) -> Report:
    """What a process that verifies tells last, after its steps. Raises `ServerError`, also with the reason that it
    gives."""
    command = [sys.executable, "-m", "pippin.worker.verification"]
    told: Any = None
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            running.stdin.write(msgspec.json.encode(spec) + b"\n" + msgspec.json.encode(asked) + b"\n")
            running.stdin.close()
            decoder = json_decoder(Step | Report | VerificationFailed)
            for line in running.stdout:
                told = decoder.decode(line)
                if not isinstance(told, Step):
                    break
                tell(told.done, told.total, told.what)
        except KeyboardInterrupt:
            running.wait()  # it was interrupted too
            raise
        running.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
    if isinstance(told, Report):
        return told
    if isinstance(told, VerificationFailed):
        raise ServerError("load_failed", told.message)
    last = said[-1] if said else "it was killed: perhaps memory ran out"
    raise ServerError("load_failed", f"The process ended with status {running.returncode}: {last}")


def _evaluate(parsed: Namespace, report: Report) -> int:
    """Run tasks of the library lm-eval on a server's completions; it prints its table. Returns its exit status."""
    from pippin.cli.chat.server import reached

    parsed.keep = False
    with reached(parsed, parsed.model) as server:
        given = f"model={server.model},base_url={server.client.address}/v1/completions"
        given += f",tokenizer={report.folder},num_concurrent=8"
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", given]
        # lm-eval reads the key from this variable alone.
        key = parsed.api_key or environment.client_key() or "none"
        variables = {**environment.variables(), "OPENAI_API_KEY": key}
        return subprocess.run([*command, "--tasks", parsed.lm_eval], env=variables, check=False).returncode


def as_text(report: Report) -> str:
    """The report with a line for each finding, and one for what it means and what helps."""
    lines = []
    for section in report.sections:
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in section.figures.items())
        told = f"left out: {section.left_out}" if section.left_out else f"{figures} ({section.seconds:g} s)"
        lines.append(f"{section.name:<10}{told}")
        for finding in section.findings:
            lines.append(f"  {finding.severity:<8}{finding.text}")
            helps = ": ".join(filter(None, ("What helps", finding.advice, finding.command)))
            if finding.meaning:
                lines.append(f"{'':<10}{finding.meaning} {helps if finding.advice else ''}".rstrip())
    return "\n".join([*lines, f"{report.model}: {report.verdict}"])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def as_page(report: Report) -> str:
    """The report as one HTML file that fetches nothing. Folders are left out."""
    import jinja2

    page = resources.files("pippin.cli").joinpath("report.html.jinja").read_text("utf-8")
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.at))
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(page)
    return template.render(report=report, shown=_shown, version=__version__, when=when)
