"""`pippin doctor`: checks that this machine can run models, and gives advice if it can't."""

import json
from collections.abc import Sequence

from pippin.cli.arguments import Parser
from pippin.cli.bench import bench_table
from pippin.cli.doctor import CHECKS, check_running_security, check_security, report
from pippin.cli.running import client_parser


def new_parser() -> Parser:
    parser = client_parser("pippin doctor", "Check that this machine can run models.")
    parser.add_argument(
        "--security",
        action="store_true",
        help="check the security of the configuration and the running server",
    )
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure the running server too, as `pippin bench --scenarios` does",
    )
    parser.add_argument("--model", default="default", help="the model to measure")
    parser.add_argument(
        "--report", action="store_true", help="print facts to send with a question, without paths or keys"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    if parsed.report:
        print(json.dumps(report(parsed), indent=2))
        return 0
    if parsed.security:
        found = [*check_security(), *check_running_security(parsed)]
    else:
        found = [finding for check in CHECKS for finding in check()]
    if parsed.json:
        print(json.dumps([{"state": finding.state, "text": finding.text} for finding in found], indent=2))
    else:
        for finding in found:
            print(f"{finding.state:<9}{finding.text}")
    if parsed.bench:
        for line in bench_table(parsed, parsed.model):
            print(line, flush=True)
    return 1 if any(finding.state == "problem" for finding in found) else 0
