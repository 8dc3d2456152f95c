"""The pages of docs/ that are written from the options and from the replaced servers' terms."""

from collections.abc import Sequence
from typing import Any, Final

from pippin.config.compat.servers import servers
from pippin.config.compat.terms import Server, Term
from pippin.config.options.declaration import Option, options
from scripts.docs.standing import Standing, standing

GENERATED: Final = "<!-- Written by `make docs`; the words are in src/pippin/config/ and scripts/docs/. -->"

CONFIGURATION: Final = """# Configuration

Every option has one name: it is a flag of `pippin serve` (`--port 8123`), a variable (`PIPPIN_PORT=8123`) and a key of
the YAML file (`port: 8123`). If several sources set an option, the last of these wins: defaults, a profile
(`--compat`), the file, the environment, the flags. `pippin config show` prints every value and its source; `--changed`
leaves the defaults out. An unknown name, or a value out of range, ends the command with status 2 and the nearest name.

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
mlx-openai-server or of vllm-mlx's registry: see [Migrating](migrating.md).

## While it runs

Options marked ● change without a restart: edit the file and send SIGHUP, or `PATCH /v1/settings` with
`{"rate_limit": 60}`. The log, or the answer, names the options that need a restart.

## Variables that are not options

| Variable | What it does |
|---|---|
| `PIPPIN_HOME` | Pippin's own folder (`~/.cache/pippin`): imported models, usage, and records of running servers |
| `PIPPIN_SERVER` | address that `pippin ps`, `load` and `unload` talk to |
| `PIPPIN_API_KEY` | key that these commands send, and that a server started here asks for |
| `HF_HOME`, `HF_HUB_CACHE`, `OLLAMA_MODELS` | folders of Hugging Face's cache and Ollama's models, as for their tools |
| `HF_TOKEN` | token for gated models |

In a variable, separate the items of a list by commas (`PIPPIN_API_KEYS=a,b`; `PIPPIN_API_KEY=a` will do for one); as a
flag, repeat the flag for each item (`--api-key a --api-key b`). Mappings are `NAME=VALUE` pairs or a JSON object. A
switch is turned off by its opposite: `--no-prefix-cache`.

## Options

The flag is `--` and the name with dashes, unless another is given. Defaults stand behind `;`; a switch is off,
and all else not set.
"""

MIGRATING: Final = """# Migrating

Pippin takes the place of these servers: keep your flags, variables, files, addresses and clients. `--compat NAME` (or
`PIPPIN_COMPAT`, or `compat:` in the file) takes over a server's port and other defaults, and its names of models.
"""

RULES: Final = """
What their documents and newest code promise works as there, except for what each page lists. These hold for all:

- Addresses answer with `/v1` and without. Errors have the shape of OpenAI or Anthropic.
- Their flags and variables work without `--compat` too, except for names as common as `PORT`. *Needless* ones are
  accepted, and the log says why there is nothing to set; *refused* ones end the start with the way out. A value that
  Pippin lacks is refused by name (`--kv-bits 7`), or takes the nearest one with a warning.
- Files of the server's disk are read inside `--media-path` alone, and never written.
- CORS is off until `--allowed-origin` names someone, or a profile whose server had it open.
- With a host other than loopback and no key, as some start by default, Pippin serves and warns.
- There is no Python module to import in place of theirs; it may stay installed beside Pippin.

Each page lists flags, variables and keys with the default there in parentheses: first those that end in the name of
Pippin's option, then others with the option that does the job.
"""


def configuration_page() -> str:
    parts = [f"{GENERATED}\n{CONFIGURATION}"]
    sections: dict[str, list[Option]] = {}
    for option in options().values():
        sections.setdefault(option.section, []).append(option)
    for title, members in sections.items():
        parts.append(f"### {title}\n\n{''.join(map(_described, members))}")
    return "\n".join(parts)


def _described(option: Option) -> str:
    mark = " ●" if option.hot else ""
    flag = "" if option.flag == f"--{option.name.replace('_', '-')}" else f", `{option.flag}`"
    return f"- `{option.name}`{flag}{mark} ({_value(option)}): {option.help}\n"


def _value(option: Option) -> str:
    match option.default:
        case None | () | {}:
            return option.expects
        case bool():
            return "on, or off" if option.default else "switch"
        case default:
            return f"{option.expects}; {default}"


def migrating_page() -> str:
    pages = [
        f"- [{server.title}](migrating/{server.name}.md): {server.command}" for server in servers().values()
    ]
    return "\n".join([f"{GENERATED}\n{MIGRATING}", *pages, RULES])


def server_page(server: Server) -> str:
    """What changes for whoever comes from this server: first the command, last the names."""
    stands = standing(server.name)
    start = f"{GENERATED}\n# From {server.title}\n\n{server.command}. [What holds for all servers](../migrating.md).\n"
    parts = [start, _profile(server, stands)]
    for title, rows in (
        ("What differs", stands.differs),
        ("What is not there", stands.missing),
        ("What is there in part", stands.partly),
        ("Other commands", stands.commands),
        ("What works, and how", {what: note for what, note in stands.works.items() if note}),
    ):
        if rows:
            listed = "".join(f"- {what}: {note}\n" for what, note in rows.items())
            parts.append(f"## {title}\n\n{listed}")
    before: tuple[Term, ...] = ()
    for title, terms in (
        ("Flags", server.flags),
        ("Variables", server.variables),
        ("YAML keys", server.keys),
        ("Settings of `PATCH /v1/settings`", server.settings),
        ("Keys of the MCP file", server.mcp_keys),
    ):
        if terms:
            parts.append(f"## {title}\n\n{_terms(terms, before)}")
            before += terms
    return "\n".join(parts)


def _terms(terms: Sequence[Term], before: Sequence[Term]) -> str:
    """The names of Pippin's options, those told before and those without need; then the others by their meanings."""
    groups: dict[str, list[str]] = {"As Pippin's": [], "As above": [], "Needless": []}
    others: dict[str, list[str]] = {}
    for term in terms:
        if _is_own(term):
            groups["As Pippin's"].append(_named(term))
        elif any(_is_same(term, other) for other in before):
            groups["As above"].append(_named(term))
        elif term.effect == "needless":
            groups["Needless"].append(_named(term))
        else:
            others.setdefault(_meaning(term), []).append(_named(term))
    lines = [f"{group}: {', '.join(names)}.\n" for group, names in groups.items() if names]
    return "\n".join([*lines, *(f"- {', '.join(names)}: {meaning}" for meaning, names in others.items()), ""])


def _is_own(term: Term) -> bool:
    """Whether the term's name ends in that of Pippin's option, with nothing to add."""
    if term.effect != "same" or not term.option or term.note or term.requires:
        return False
    flag = options()[term.option].flag if term.option in options() else term.option
    return _words(term.name).endswith((_words(flag), _words(term.option)))


def _is_same(term: Term, other: Term) -> bool:
    """Whether a name ends in that of another term which means the same."""
    meaning = (term.effect, term.option) == (other.effect, other.option)
    return meaning and _words(term.name).endswith(_words(other.name))


def _words(name: str) -> str:
    return name.removeprefix("--").lower().replace("_", "-")


def _named(term: Term) -> str:
    return (
        f"`{term.name}`"
        if term.default in ("", "-", "off", "required")
        else f"`{term.name}` ({term.default})"
    )


def _meaning(term: Term) -> str:
    needed = f"with `{term.requires}`" if term.requires else ""
    note = "; ".join(filter(None, (term.note, needed)))
    match term.effect:
        case "same" | "equivalent" if term.option:
            return f"`{term.option}`; {note}" if note else f"`{term.option}`"
        case "same":
            return note
        case effect:
            return f"{effect}; {note}"


def _profile(server: Server, stands: Standing) -> str:
    values = ", ".join(f"`{name}: {_plain(value)}`" for name, value in server.profile.items())
    if server.fallbacks:
        ranked = ", ".join(f"`{name}: {_plain(value)}`" for name, value in server.fallbacks.items())
        values += f"; below the checkpoint's own defaults of sampling, {ranked}"
    if server.aliases:
        values += f"; {len(server.aliases)} of its names of models mean repositories of MLX models"
    notes = "".join(f" {note}" for note in stands.profile)
    return f"`--compat {server.name}` sets {values}.{notes}\n"


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
