"""Reads Pippin's variables and those of the replaced servers. The only reader of `os.environ`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pippin.config.compat.servers import variable_terms
from pippin.config.compat.terms import translate, without_effect
from pippin.config.errors import nearest
from pippin.config.options.declaration import options
from pippin.config.options.start import Compat
from pippin.config.settings import Given, Note, Origin, Reading
from pippin.config.values import FALSE, parse

OWNED = "PIPPIN_OWNED"
"""Set for a server that ends with the process that started it, whose pipe its input is (see `cli/running.py`)."""
OTHERS = ("PIPPIN_HOME", "PIPPIN_SERVER", "PIPPIN_WORKER_VARIABLES", OWNED)
"""Pippin's variables that are not server options."""


def variables() -> Mapping[str, str]:
    return os.environ


def read_variables(variables: Mapping[str, str], compat: Compat | None) -> Reading:
    """The options set in the environment. Pippin's own variables override foreign ones for the same option."""
    given: dict[str, Given] = {}
    notes: list[Note] = []
    for name, term in variable_terms(compat).items():
        if text := variables.get(name):
            if term.requires and variables.get(term.requires, "").strip().lower() in ("", *FALSE):
                notes.append(without_effect(term, name))
                continue
            values = translate(term, text, name, notes)
            given |= {option: Given(value, Origin("environment", name)) for option, value in values.items()}
    # A list's variable also has a singular form, like its flag; the plural takes precedence.
    own = {
        "PIPPIN_" + option.flag.strip("-").replace("-", "_").upper(): option for option in options().values()
    }
    own |= {option.variable: option for option in options().values()}
    for name, option in own.items():
        if text := variables.get(name):
            given[option.name] = Given(parse(option, [text], name), Origin("environment", name))
    unknown = {name for name in variables if name.startswith("PIPPIN_")} - set(own) - set(OTHERS)
    notes += [
        Note("warning", f"No option has the variable {name}.{nearest(name, own)}") for name in sorted(unknown)
    ]
    return Reading(given, [], notes)


def home(variables: Mapping[str, str] = os.environ) -> Path:
    """Pippin's own folder: imported models, caches, and the state files of a running server."""
    if folder := variables.get("PIPPIN_HOME"):
        return Path(folder).expanduser()
    cache = variables.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "pippin"


def lasting_variables() -> dict[str, str]:
    """Variables that a server needs which starts at login: where models are, and what macOS is told of its GPU work."""
    names = ("PIPPIN_HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS", "AGX_")
    return {name: value for name, value in os.environ.items() if value and name.startswith(names)}


def server_address() -> str | None:
    """Address of the running server that commands connect to."""
    return os.environ.get("PIPPIN_SERVER") or None


def owned() -> dict[str, str]:
    """The environment for a server that ends with this process."""
    return {**os.environ, OWNED: "1"}


def is_owned() -> bool:
    return OWNED in os.environ


def client_key() -> str | None:
    """The API key with which commands authenticate to the running server."""
    return os.environ.get("PIPPIN_API_KEY") or os.environ.get("PIPPIN_API_KEYS", "").split(",")[0] or None


def ask_no_system_for_proxies() -> None:
    """Let the environment alone name proxies in this process. macOS ends a fork that asks it for them, as Python does
    where the environment names none."""
    if sys.platform == "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        os.environ["no_proxy"] = "*"


def tell_the_hub_nothing() -> None:
    """Have the hub's client tell the hub nothing of this machine, such as which agent runs it, unless the user wants
    it to."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
