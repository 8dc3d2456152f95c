"""`pippin verify`: checks that a model is served with its publisher's quality."""

import asyncio
import json
from collections.abc import Sequence

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, run_verification, settings_of
from pippin.cli.report import as_text
from pippin.cli.terminal import progress, say
from pippin.config.verified import keep
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import SECTIONS, Verification


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
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    sections = tuple(name for name in SECTIONS if name in (parsed.only or SECTIONS))
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
    say(json.dumps(msgspec.to_builtins(report), indent=2) if parsed.json else as_text(report))
    return 1 if report.count("fault") else 0
