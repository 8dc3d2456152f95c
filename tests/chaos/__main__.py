"""Runs the storm and prints what came of it; the exit status is 1 where something happened that never should."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.chaos.faults import ACTS
from tests.chaos.health.probes import summary
from tests.chaos.ledger import Ledger
from tests.chaos.phases import GROUPS, PHASES, phase
from tests.chaos.storm import Report, storm

SHOWN = 5  # of the slowest answers of `/health`


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of mixed load and faults (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", choices=[*ACTS, *PHASES, *GROUPS], help="this alone; may be given again"
    )
    parser.add_argument("--replicas", type=int, default=1, help="of each model in the storm (default 1)")
    parser.add_argument("--folder", type=Path, help="where the server's files and log stay")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="pippin-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    broken: list[str] = []
    acts = [name for name in given.only or ACTS if name in ACTS]
    if acts:
        of_models = ("--replicas", str(given.replicas)) if given.replicas > 1 else ()
        report = asyncio.run(storm(folder, given.minutes * 60, given.seed, acts, of_models))
        show(report)
        broken += told(report.ledger)
    phases = (*PHASES, *GROUPS)
    for name in [name for name in given.only or phases if name in phases]:
        (folder / name.replace(" ", "-")).mkdir(exist_ok=True)
        ledger = asyncio.run(phase(name, folder / name.replace(" ", "-")))
        print(f"\n{name}: " + ", ".join(f"{key} {count}" for key, count in sorted(ledger.outcomes.items())))
        broken += told(ledger)
    print(
        f"\n{'Nothing was broken.' if not broken else f'{len(broken)} invariants were broken.'} Files: {folder}"
    )
    return 1 if broken else 0


def told(ledger: Ledger) -> list[str]:
    for text in ledger.broken:
        print(f"BROKEN  {text}")
    return ledger.broken


def show(report: Report) -> None:
    print(
        f"{report.seconds:.0f} s of load and faults; load of the machine {report.load[0]:.1f} on {os.cpu_count()} cores"
    )
    print("faults:   " + ", ".join(f"{name} {count}" for name, count in report.ledger.faults.items()))
    for outcome, count in sorted(report.ledger.outcomes.items()):
        print(f"  {count:8} {outcome}")
    print(f"before:   {report.before}\nafter:    {report.after}")
    print(f"/health:  {summary(report.counted)}")
    for probe in sorted(report.counted, key=lambda each: -each.took)[:SHOWN]:
        print(f"  {report.ledger.act_at(probe.began)}: {probe}")


if __name__ == "__main__":
    sys.exit(main())
