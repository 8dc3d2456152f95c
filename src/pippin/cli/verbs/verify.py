"""`pippin verify`: checks that a model is served with its publisher's quality."""

import asyncio
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, run_errand, settings_of
from pippin.cli.terminal import progress, say
from pippin.cli.verify import lm_eval
from pippin.cli.verify.report import as_page, as_text
from pippin.config import environment
from pippin.config.verified import keep
from pippin.core.errands import SECTIONS, Report, Verification
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

PROCESS: Final = "pippin.worker.verification"


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin verify",
        description="Check that a model is served with its publisher's quality: its files, tokens, template, numbers, "
        "tool calls and answers. Changes nothing. Exits with 1 if it finds faults.",
    )
    parser.add_argument("model", help="a name, a folder, or a repository of the hub, which is downloaded")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="this section; may be given several times"
    )
    parser.add_argument(
        "--against", metavar="MODEL", help="compare with this model, such as the one before quantisation"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that can be shared")
    parser.add_argument(
        "--lm-eval",
        metavar="TASKS",
        help="tasks of lm-eval too, on the running server, or on one that is started",
    )
    parser.add_argument(
        "--server", help="address of the server for lm-eval; the one running here if not given"
    )
    parser.add_argument("--api-key", help="key to show it; PIPPIN_API_KEY if not given")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    sections = tuple(name for name in SECTIONS if name in (parsed.only or SECTIONS))
    if parsed.lm_eval:
        lm_eval.refuse_missing(parsed.lm_eval)
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
        report = run_errand(PROCESS, spec, asked, Report, tell)
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
        return lm_eval.run_tasks(parsed.lm_eval, server.client.address, server.model, report.folder, key)
