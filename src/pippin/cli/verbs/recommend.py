"""`pippin recommend`: models that suit this machine."""

import json
from collections.abc import Sequence
from typing import Final

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, settings_of
from pippin.cli.terminal import say, size, table

MOST: Final = 5


def new_parser() -> Parser:
    from pippin.cli.fitting.recommend import PURPOSES

    parser = Parser(
        prog="pippin recommend",
        description="Name models that suit this machine's memory and device, from a list that ships with Pippin.",
    )
    parser.add_argument(
        "--for", dest="purpose", choices=PURPOSES, default="chat", help="its use (default: chat)"
    )
    parser.add_argument(
        "--memory", type=float, metavar="GB", help="for a machine with so much memory for models"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    from pippin.cli.fitting.fit import USUAL_WINDOW, budget_of
    from pippin.cli.fitting.recommend import LISTED, bandwidth, pick, recommended
    from pippin.config.accelerator import accelerator

    memory = int(parsed.memory * 1e9) if parsed.memory else budget_of(settings_of(parsed).server)
    on_cpu = accelerator() == "cpu"
    fast = bandwidth()
    found = pick(recommended(), parsed.purpose, memory, on_cpu=on_cpu, bandwidth=fast)[:MOST]
    if parsed.json:
        rows = [
            {
                "id": each.id,
                "stored_bytes": each.stored,
                "needed_bytes": each.needed(on_cpu=on_cpu),
                "tokens_per_second": round(each.speed(fast, on_cpu=on_cpu), 1),
                "tools": each.tools,
                "why": each.why,
            }
            for each in found
        ]
        say(json.dumps(rows, indent=2))
    elif found:
        cells = [
            (size(each.stored), size(each.needed(on_cpu=on_cpu)), f"{each.speed(fast, on_cpu=on_cpu):.3g}")
            for each in found
        ]
        told = [(each.id, *cell, each.why) for each, cell in zip(found, cells, strict=True)]
        say(table(("MODEL", "DOWNLOAD", "IN MEMORY", "TOKENS/S", "WHY"), told))
        say(
            f"In memory: with {USUAL_WINDOW} tokens for one client, of {size(memory)} that models may take here."
        )
        say(
            f"Tokens a second: about, as memory was just read, at {fast / 1e9:.3g} GB a second; a GPU reads faster."
        )
        say(f"The list is of {LISTED}. `pippin fit {found[0].id}` asks the hub what is there now.")
        say(f"Fetch one: pippin pull {found[0].id}")
    else:
        say(f"None of the list fits into {size(memory)}. `pippin search tiny` may find one on the hub.")
    return 0 if found else 1
