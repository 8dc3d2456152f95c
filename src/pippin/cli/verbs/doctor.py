"""What is installed here: `pippin doctor` checks that this machine can run models, and gives advice if it can't, and
`version` names the version."""

import json
from argparse import Namespace
from functools import partial

import pippin
from pippin.cli.arguments import CLIENT, switch, verb


@verb(
    "doctor",
    "Check that this machine can run models.",
    *CLIENT,
    switch("--security", help="try what the running server lets strangers do"),
    switch("--report", help="print facts to send with a question, without paths or keys"),
)
def doctor(parsed: Namespace) -> int:
    from pippin.cli.doctor import CHECKS, check_security, report

    if parsed.report:
        print(json.dumps(report(parsed), indent=2))
        return 0
    checks = (partial(check_security, parsed),) if parsed.security else CHECKS
    found = [finding for check in checks for finding in check()]
    if parsed.json:
        print(json.dumps([{"state": finding.state, "text": finding.text} for finding in found], indent=2))
    else:
        for finding in found:
            print(f"{finding.state:<9}{finding.text}")
    return 1 if any(finding.state == "problem" for finding in found) else 0


@verb("version", "Show the version.")
def version(_: Namespace) -> int:
    print(f"pippin {pippin.__version__}")
    return 0
