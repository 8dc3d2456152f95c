"""`pippin doctor`: checks that this machine can run models, and gives advice if it can't."""

import json
from collections.abc import Sequence
from functools import partial

from pippin.cli.arguments import Parser
from pippin.cli.doctor import CHECKS, check_security
from pippin.cli.running import client_parser


def new_parser() -> Parser:
    parser = client_parser("pippin doctor", "Check that this machine can run models.")
    parser.add_argument(
        "--security",
        action="store_true",
        help="try what the running server lets strangers do",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    checks = (partial(check_security, parsed),) if parsed.security else CHECKS
    found = [finding for check in checks for finding in check()]
    if parsed.json:
        print(json.dumps([{"state": finding.state, "text": finding.text} for finding in found], indent=2))
    else:
        for finding in found:
            print(f"{finding.state:<9}{finding.text}")
    return 1 if any(finding.state == "problem" for finding in found) else 0
