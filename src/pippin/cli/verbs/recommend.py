"""`pippin recommend`: models that suit this machine."""

import json
from collections.abc import Sequence

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, settings_of
from pippin.cli.terminal import say, size, table


def new_parser() -> Parser:
    from pippin.core.models import PURPOSES

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
    from pippin.catalog.fitting.fit import USUAL_WINDOW
    from pippin.catalog.fitting.recommend import LISTED, suited
    from pippin.config.accelerator import memory_budget

    memory = int(parsed.memory * 1e9) if parsed.memory else memory_budget(settings_of(parsed).server)
    found = suited(parsed.purpose, memory)
    if parsed.json:
        say(json.dumps(msgspec.to_builtins(found), indent=2))
    elif found:
        rows = [
            (
                each.id,
                size(each.stored_bytes),
                size(each.needed_bytes),
                f"{each.tokens_per_second:.3g}",
                each.why,
            )
            for each in found
        ]
        say(table(("MODEL", "DOWNLOAD", "IN MEMORY", "TOKENS/S", "WHY"), rows))
        say(
            f"In memory: with {USUAL_WINDOW} tokens for one client, of {size(memory)} that models may take here."
        )
        say("Tokens a second: about, by the speed at which memory was just read; a GPU reads faster.")
        say(f"The list is of {LISTED}. `pippin fit {found[0].id}` asks the hub what is there now.")
        say(f"Fetch one: pippin pull {found[0].id}")
    else:
        say(f"None of the list fits into {size(memory)}. `pippin search tiny` may find one on the hub.")
    return 0 if found else 1
