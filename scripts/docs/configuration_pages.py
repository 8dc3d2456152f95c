"""The pages of docs/ that are written from the options and from the replaced servers' terms."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pippin.config.compat.promises import PROMISES
from pippin.config.compat.servers import SERVERS
from pippin.config.compat.terms import Server, Term
from pippin.config.options.declaration import Option, options

GENERATED: Final = "<!-- Written by `make docs`; the words are in src/pippin/config/. -->"

CONFIGURATION: Final = """# Configuration

Every option has one name. It is a flag of `pippin serve` (`--port 8123`), a variable (`PIPPIN_PORT=8123`) and a key of
the YAML file (`port: 8123`). Where several say something, the later wins: defaults, a profile (`--compat`), the file,
the environment, the flags. `pippin config show` prints every value and who gave it; `--changed` leaves the defaults
out. A name that is not known, or a value out of range, is one line with the nearest name, and exit status 2.

## The file

```yaml
# pippin serve --config pippin.yaml
port: 8000
api_keys: [a-long-secret]
temperature: 0.7                 # an option of models: the default for all
models:
  - mlx-community/Qwen3-4B-4bit  # a folder, a repository, an alias or a name
  - path: /models/gemma
    name: gemma                  # what clients call it
    preload: false               # load at the first request
    temperature: 0.2             # holds for this model, whatever the flags say
    idle_timeout: 600
```

An entry takes `path`, `name`, `kind`, `preload` and every option of models. The file may also have the form of
mlx-openai-server (`server:` and `models:` with `model_path`) or of vllm-mlx's registry (`manager:` and `models:`):
see [Migrating](migrating.md).

## While it runs

Options marked ● change without a restart: edit the file and send SIGHUP, or `PATCH /v1/settings` with
`{"rate_limit": 60}`. What needs a restart is named in the log, or in the answer, and keeps its value until then.

## Variables that are no options

| Variable | What it does |
|---|---|
| `PIPPIN_HOME` | Pippin's own folder (`~/.cache/pippin`): imported models, and word of running servers |
| `PIPPIN_SERVER` | address that `pippin ps`, `load` and `unload` talk to |
| `PIPPIN_API_KEY` | key that they show, and that a server here asks for |
| `HF_HOME`, `HF_HUB_CACHE` | where Hugging Face's cache is, as its own tools read them |
| `HF_TOKEN` | token for gated models |

Lists are parted by commas in a variable (`PIPPIN_API_KEYS=a,b`; `PIPPIN_API_KEY=a` will do for one), and given once per
item as a flag (`--api-key a --api-key b`); mappings are `NAME=VALUE` pairs or a JSON object. A switch has an opposite:
`--no-prefix-cache`.

## Options
"""

MIGRATING: Final = """# Migrating

Pippin takes the place of four servers, and of mlx_lm.server beneath two of them. Their flags, environment variables and
YAML keys work in it under their own names; where two of them disagree on a default, `--compat NAME` (or
`PIPPIN_COMPAT`, or `compat:` in the file) takes over the defaults of one. What each name does here:

- **same**: it is Pippin's option of that name.
- **equivalent**: that option does the same job in another way; one line in the log says how.
- **needless**: accepted with one line in the log; nothing to set.
- **unsupported**: accepted with a warning; Pippin does not do it, and the reason is given.

A value that Pippin has no equal of is refused by name (`--kv-bits 3.5`), or takes the nearest that is honest, with a
warning that names both. A value that the server itself would refuse is refused.

With a host other than loopback and no key, as two of them start by default, Pippin serves too, and says so loudly.

Their endpoints answer under the same addresses, with `/v1` and without; what is another here, or is not there, is in a
table of its own. Errors have the shape of OpenAI or Anthropic everywhere, and files of the server's disk are read
inside `--media-path` alone and never written. CORS is off until `--allowed-origin` names someone, or a profile whose
server had it open.

What their documents and newest code promise and Pippin once did not do stands in a last table for each, with its
state: **works**, **partly** or **not yet** (the note says what holds today), **differs** or **refused** (on purpose,
for the reason that is given). `tests/drop_in` runs the examples of their documents in their order, as they are typed
there.
"""


def configuration_page() -> str:
    parts = [f"{GENERATED}\n{CONFIGURATION}"]
    sections: dict[str, list[Option]] = {}
    for option in options().values():
        sections.setdefault(option.section, []).append(option)
    for title, members in sections.items():
        rows = [_option_row(option) for option in members]
        parts.append(f"### {title}\n\n{_table(('Option', 'Flag', 'Value', 'Default', 'What it does'), rows)}")
    return "\n".join(parts)


def _option_row(option: Option) -> tuple[str, ...]:
    mark = " ●" if option.hot else ""
    return (
        f"`{option.name}`{mark}",
        f"`{option.flag}`",
        option.expects,
        _default(option.default),
        option.help,
    )


def _default(value: Any) -> str:
    match value:
        case None | () | {}:
            return "not set"
        case bool():
            return "on" if value else "off"
        case _:
            return f"`{value}`"


def migrating_page() -> str:
    contents = [f"- [{server.title}](#{_anchor(server.title)})" for server in SERVERS.values()]
    return "\n".join([f"{GENERATED}\n{MIGRATING}", *contents, "", *map(_server, SERVERS.values())])


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _server(server: Server) -> str:
    parts = [f"## {server.title}\n", f"{server.command}.\n", _profile(server)]
    for title, terms in (
        ("flags", server.flags),
        ("variables", server.variables),
        ("YAML keys", server.keys),
        ("settings of `PATCH /v1/settings`", server.settings),
        ("keys of the MCP file", server.mcp_keys),
    ):
        if terms:
            rows = [_term_row(term) for term in terms]
            parts.append(
                f"### {server.title}: {title[0].lower() if title != 'YAML keys' else 'Y'}{title[1:]}\n"
            )
            parts.append(_table(("Name", "Default there", "In Pippin", "Option", "Notes"), rows))
    for title, pairs in (("what else differs", server.differences), ("other commands", server.other)):
        if pairs:
            parts.append(f"### {server.title}: {title}\n")
            parts.append(_table(("There", "In Pippin"), [(f"`{name}`", note) for name, note in pairs]))
    if promises := next(found for name, found in PROMISES.items() if name == server.name):
        parts.append(f"### {server.title}: where its promises stand\n")
        rows = [
            (each.what.replace("|", "\\|"), each.state, each.note.replace("|", "\\|")) for each in promises
        ]
        parts.append(_table(("What its users find there", "In Pippin", "How, or why"), rows))
    return "\n".join(parts)


def _term_row(term: Term) -> tuple[str, ...]:
    note = term.note if term.requires is None else f"{term.note} (with `{term.requires}`)".strip()
    option = f"`{term.option}`" if term.option else "-"
    return (f"`{term.name}`", term.default.replace("|", "\\|") or "-", term.effect, option, note or "-")


def _profile(server: Server) -> str:
    values = ", ".join(f"`{name}: {_plain(value)}`" for name, value in server.profile.items())
    if server.fallbacks:
        ranked = ", ".join(f"`{name}: {_plain(value)}`" for name, value in server.fallbacks.items())
        values += f"; below the checkpoint's own defaults of sampling, {ranked}"
    notes = "".join(f" {note}" for note in server.profile_notes)
    return f"`--compat {server.name}` sets {values}.{notes}\n"


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
