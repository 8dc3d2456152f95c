"""What a report says of each finding."""

import re
import shlex
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec.structs import replace

from pippin.core.published import find_text, name_of
from pippin.core.verification import Finding, Severity
from pippin.engines.verify.folder import Folder

REPOSITORY: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
BASE: Final = re.compile(rf"^base_model:\s*(?:- )?[\"']?({REPOSITORY.pattern})[\"']?\s*$", re.MULTILINE)
"""Where a model's page names the model that it was made of."""
PACKED: Final = re.compile(
    r"(?<=\w)[-_.](?:mlx|gguf|i?q\d|bf16|fp?16|fp8|mxfp|nvfp|awq|gptq|\d+-?bit).*", re.IGNORECASE
)
"""What a conversion adds to a model's name."""
SEARCH: Final = "pippin search --all {name}"


@cache
def known() -> dict[str, dict[str, Any]]:
    """The findings by their codes: `severity`, `text`, `meaning` and `help`."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(data("findings.yaml"))
    return found


def data(file: str) -> str:
    """The text of a bundled file."""
    return resources.files(__package__).joinpath("data", file).read_text("utf-8")


def finding(code: str, severity: Severity | None = None, **facts: Any) -> Finding:
    """A finding with its facts, of which lists are written with commas; `severity` if not the usual one."""
    told = known()[code]
    written = {
        name: ", ".join(map(str, fact)) if isinstance(fact, list) else fact for name, fact in facts.items()
    }
    return Finding(
        code=code,
        severity=severity or told["severity"],
        text=told["text"].format(**written),
        meaning=told["meaning"],
        advice=told["help"]["advice"],
        command=told["help"]["command"].replace("{files}", shlex.join(facts.get("files", ()))),
    )


def helped(found: Finding, names: dict[str, str]) -> Finding:
    """A finding with the names of its command. Where one is not among `names`, a search for the publisher helps."""
    try:
        return replace(found, command=found.command.format_map(names))
    except (KeyError, ValueError):
        advice = f"{found.advice}; this finds its repository"
        return replace(found, advice=advice, command=SEARCH.format_map(names))


def names_of(folder: Folder, against: Path | None) -> dict[str, str]:
    """The names that commands have, quoted for a shell: `model`, `folder`, the `name` of the original, the `converter`
    of its kind, and where they are known `repository`, which has the model, `publisher`, which has its original files,
    `source`, from which it is converted, and `uncompared`, an original that it was not compared with."""
    own, other = (name_of(each) if each else "" for each in (folder.path, against))
    readme = BASE.search(find_text(folder.path / "README.md") or "")
    said = (folder.config.get("_name_or_path"), readme and readme[1])
    # A model that was trained further is named after itself, and a conversion after its original.
    called = own.rpartition("/")[2].casefold()
    bases = [each for each in said if isinstance(each, str) and REPOSITORY.fullmatch(each) and each != own]
    base = next((each for each in bases if called.startswith(each.partition("/")[2].casefold())), "")
    own, other = (each if "/" in each else "" for each in (own, other))
    compared = str(against or "")
    media = {"vision_config", "audio_config"} & folder.config.keys()
    names = {
        "model": own or str(folder.path),
        "folder": str(folder.path),
        "name": PACKED.sub("", base.partition("/")[2] or called),
        "converter": "mlx_vlm.convert" if media else "mlx_lm.convert",
        "repository": own or base or other,
        "publisher": other or base or own,
        "source": compared or base,
        "uncompared": "" if compared else base,
    }
    return {name: shlex.quote(value) for name, value in names.items() if value}
