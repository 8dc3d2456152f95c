"""What fits this machine: `pippin fit` measures a model without downloading its weights, `recommend` names models."""

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from pippin.cli.arguments import JSON, argument, number, of_catalog, switch, verb
from pippin.cli.local import open_catalog, settings_of
from pippin.cli.terminal import as_json, say, size, table
from pippin.core.models import PURPOSES

if TYPE_CHECKING:
    from pippin.catalog.fitting import Fit


SMALLER: Final = (
    "Fewer bits, a shorter --context or --kv-bits may fit; `pippin recommend` names models that do."
)


@verb(
    "fit",
    argument("model", help="a name, a folder, or a repository of the hub (org/name)"),
    number(
        "--context", least=1, metavar="TOKENS", help="context of each client (default: 8192, or the window)"
    ),
    number("--clients", least=1, default=1, metavar="COUNT", help="at the same time (default: 1)"),
    switch("--json", help="as JSON, in bytes and tokens"),
    of_catalog,
)
def fit(parsed: Namespace) -> int:
    from pippin.catalog.fitting import measure, read_source
    from pippin.config.accelerator import memory_budget

    settings = settings_of(parsed)
    source = read_source(open_catalog(settings), parsed.model, settings.server.model_defaults)
    found = measure(source, parsed.context, parsed.clients, memory_budget(settings.server))
    say(as_json(_facts(found)) if parsed.json else _told(found))
    return 0 if found.fits else 1


def _told(fit: "Fit") -> str:
    source, each = fit.source, fit.context_bytes
    lines = [("weights", f"{size(source.loaded)}  ({source.weights}; {size(source.stored)} on disk)")]
    if each is not None:
        for_each = f", {fit.clients} x {size(each)}" if fit.clients > 1 else ""
        lines.append(("context", f"{size(fit.clients * each)}  ({fit.context} tokens{for_each})"))
    elif source.kind == "language":
        lines.append(("context", "its configuration does not tell"))
    lines += [
        ("together", f"{size(fit.needed)} of the {size(fit.budget)} that models may take here"),
        ("fits", "yes" if fit.fits else "no"),
    ]
    if each is not None and fit.fits:
        window = source.window
        whole = " (the model's window)" if fit.longest == window else f" of its window of {window}"
        of_all = f" for each of {fit.clients} clients" if fit.clients > 1 else ""
        lines.append(("longest", f"{fit.longest} tokens{of_all}{whole}"))
    lines.append(("counted", "weights as they run, with the process; a context while its client is answered"))
    text = "\n".join(f"{name:<10}{words}" for name, words in lines)
    verb, word = ("serve", "Serve") if source.here else ("pull", "Fetch")
    then = f"{word} it: pippin {verb} {source.id}" if fit.fits else SMALLER
    return f"{source.id}\n{text}\n{then}"


def _facts(fit: "Fit") -> dict[str, object]:
    return {
        "id": fit.source.id,
        "kind": fit.source.kind,
        "stored_bytes": fit.source.stored,
        "loaded_bytes": fit.source.loaded,
        "context_tokens": fit.context,
        "context_bytes": fit.context_bytes,
        "clients": fit.clients,
        "needed_bytes": fit.needed,
        "budget_bytes": fit.budget,
        "fits": fit.fits,
        "longest_context": None if fit.context_bytes is None else fit.longest,
    }


@verb(
    "recommend",
    argument("--for", dest="purpose", choices=PURPOSES, default="chat", help="its use (default: chat)"),
    number(
        "--memory", least=0.1, kind=float, metavar="GB", help="for a machine with so much of it for models"
    ),
    JSON,
    of_catalog,
)
def recommend(parsed: Namespace) -> int:
    from pippin.catalog.fitting import LISTED, USUAL_WINDOW, suited
    from pippin.config.accelerator import memory_budget

    memory = int(parsed.memory * 1e9) if parsed.memory else memory_budget(settings_of(parsed).server)
    found = suited(parsed.purpose, memory)
    if parsed.json:
        say(as_json(found))
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
