"""The pages of docs/ that are written from the options and from the replaced servers' terms."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pippin.config.compat.promises import PROMISES, State
from pippin.config.compat.servers import SERVERS
from pippin.config.compat.terms import Server, Term
from pippin.config.options.declaration import Option, options

GENERATED: Final = "<!-- Written by `make docs`; the words are in src/pippin/config/. -->"

CONFIGURATION: Final = """# Configuration

Every option has one name: it is a flag of `pippin serve` (`--port 8123`), a variable (`PIPPIN_PORT=8123`) and a key of
the YAML file (`port: 8123`). If several sources set an option, the last of these wins: defaults, a profile
(`--compat`), the file, the environment, the flags. `pippin config show` prints every value and its source; `--changed`
leaves the defaults out. An unknown name, or a value out of range, ends the command with status 2 and one line on
standard error, which suggests the nearest name.

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

An entry takes `path`, `name`, `kind`, `preload` and every option of models. The file may also have the format of
mlx-openai-server (`server:` and `models:` with `model_path`) or of vllm-mlx's registry (`manager:` and `models:`):
see [Migrating](migrating.md).

## While it runs

Options marked ● change without a restart: edit the file and send SIGHUP, or `PATCH /v1/settings` with
`{"rate_limit": 60}`. The log, or the answer, names the options that need a restart; they keep their values until then.

## Variables that are not options

| Variable | What it does |
|---|---|
| `PIPPIN_HOME` | Pippin's own folder (`~/.cache/pippin`): imported models, and records of running servers |
| `PIPPIN_SERVER` | address that `pippin ps`, `load` and `unload` talk to |
| `PIPPIN_API_KEY` | key that these commands send, and that a server started here asks for |
| `HF_HOME`, `HF_HUB_CACHE` | location of Hugging Face's cache, read as its own tools read them |
| `HF_TOKEN` | token for gated models |

In a variable, separate the items of a list by commas (`PIPPIN_API_KEYS=a,b`; `PIPPIN_API_KEY=a` will do for one); as a
flag, repeat the flag for each item (`--api-key a --api-key b`). Mappings are `NAME=VALUE` pairs or a JSON object. A
switch is turned off by its opposite: `--no-prefix-cache`.

## Options
"""

MIGRATING: Final = """# Migrating

Pippin takes the place of four servers, and of mlx_lm.server beneath two of them. Their flags, environment variables and
YAML keys work in it under their own names; where two of them disagree on a default, `--compat NAME` (or
`PIPPIN_COMPAT`, or `compat:` in the file) takes over the defaults of one.

For each server there is first what differs on purpose, what is not there and what is there in part, with the reason
or the way out; then what works and was worth a word; then each flag, variable and key. All else that their documents
and newest code promise works as there: `tests/drop_in` types the examples of their documents, and for what works here
a test is named in `tests/config/test_promises.py`. What each name of a flag, variable or key does:

- **same**: it is Pippin's option of that name.
- **equivalent**: that option does the same job in another way; one line in the log says how.
- **needless**: accepted with one line in the log; nothing to set.
- **refused**: the start ends with the reason and the way out.

A value that Pippin has no equal of is refused by name (`--kv-bits 7`), or takes the nearest that is honest, with a
warning that names both. A value that the server itself would refuse is refused.

With a host other than loopback and no key, as two of them start by default, Pippin serves too, and says so loudly.

Their endpoints answer under the same addresses, with `/v1` and without. Errors have the shape of OpenAI or Anthropic
everywhere, and files of the server's disk are read inside `--media-path` alone and never written. CORS is off until
`--allowed-origin` names someone, or a profile whose server had it open. Pippin is a server and a command: where a
document imports the Python module of a replaced one, there is nothing to import instead, and that module may stay
installed beside it.
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
    for title, rows in _standing(server):
        if rows:
            parts.append(f"### {server.title}: {title}\n")
            parts.append(_table(("There", "In Pippin"), rows))
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
    return "\n".join(parts)


def _standing(server: Server) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Titles and rows of the tables that say where its promises stand."""
    promises = next(found for name, found in PROMISES.items() if name == server.name)

    def of(*states: State) -> list[tuple[str, str]]:
        found = [each for each in promises if each.state in states]
        return [(each.what.replace("|", "\\|"), each.note.replace("|", "\\|")) for each in found]

    yield "what differs", [*((f"`{name}`", note) for name, note in server.differences), *of("differs")]
    yield "what is not there, and why", of("refused", "not yet")
    yield "what is there in part", of("partly")
    yield "other commands", [(f"`{name}`", note.replace("|", "\\|")) for name, note in server.other]
    yield "what works, and how", of("works")


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
