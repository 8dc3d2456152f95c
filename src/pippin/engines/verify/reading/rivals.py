"""Other settings with which a model reads an ordinary text better than with those of its config.json."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.published import find_json, table
from pippin.core.verification import Finding
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.verify.files import arguments_of
from pippin.engines.verify.findings import data, finding
from pippin.engines.verify.folder import Folder, Json
from pippin.engines.verify.reading.perplexity import POOR, Surprise

MADE: Final = 16  # passes at most


class Rival(Struct, frozen=True):
    """A value of a field beside the folder's own."""

    field: str
    own: Any
    value: Any

    def put(self, config: Json) -> None:
        """Change a configuration of a language model."""
        config[self.field] = self.value
        if self.field == "num_attention_heads":
            keys, size = config.get("num_key_value_heads"), config.get("head_dim")
            config |= {"num_key_value_heads": keys and keys * self.value // self.own}
            config |= {"head_dim": size and size * self.own // self.value}
        turns = table(config.get("rope_parameters"))
        for each in (turns, *map(table, turns.values())):
            # Windows have a base of their own.
            if self.field in each and each is not turns.get("sliding_attention"):
                each[self.field] = self.value
        if self.field == "rope_scaling":
            config.pop("rope_parameters", None)
            config |= {"rope_theta": turns["rope_theta"]} if "rope_theta" in turns else {}


def rivals(folder: Folder, *, broken: bool) -> Iterator[Rival]:
    """The values that are tried: those of fields that the folder has, or its class reads. Some are worth a pass only if
    the model reads like a `broken` one."""
    turns = table(folder.text.get("rope_parameters"))
    turns = table(turns.get("full_attention")) or turns
    scaling = {"rope_scaling": turns} if turns.get("rope_type", "default") != "default" else {}
    said = {**turns, **folder.config, **folder.text, **scaling}
    known = said.keys() | arguments_of(folder)
    for field, told in yaml.safe_load(data("rivals.yaml")).items():
        own = said.get(field)
        times = [own * each for each in told.get("times", ())] if isinstance(own, int | float) else []
        if field not in (said if told.get("given") else known) or (told.get("broken") and not broken):
            continue
        for value in (*told.get("values", ()), *times):
            value = int(value) if isinstance(own, int) and isinstance(value, float) and value >= 1 else value
            if value != own and bool(value) | bool(own) and _ratio(own, value) >= told.get("apart", 1):
                yield Rival(field, own, value)


def _ratio(one: Any, other: Any) -> float:
    """How many times as much as the other one is; infinite for what are no numbers above zero."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float) and min(one, other) > 0
    return float(max(one / other, other / one)) if numbers else math.inf


def check(folder: Path, read: Callable[[Path], Surprise], own: Surprise) -> Iterator[Finding]:
    """Read a text again with each value. The right one reads it better than the folder's `own`."""
    best, right = own, None
    for rival in [*rivals(Folder.read(folder), broken=own.bits > POOR)][:MADE]:
        try:
            with _with(folder, rival) as changed:
                found = read(changed)
        except (ServerError, *FAILURES):  # no model can be made so
            continue
        if found.bits < best.bits:
            best, right = found, rival
    if right is not None and best.clearly_beats(own):
        one, other = json.dumps(right.own), json.dumps(right.value)
        yield finding(
            "setting-other", field=right.field, own=one, value=other, bits=own.bits, other=best.bits
        )


@contextmanager
def _with(folder: Path, rival: Rival) -> Iterator[Path]:
    """A folder that leads to the same files, but for its config.json."""
    with TemporaryDirectory() as made:
        for file in folder.iterdir():
            if file.name != "config.json":
                (Path(made) / file.name).symlink_to(file.resolve())
        config = find_json(folder / "config.json") or {}
        rival.put(table(config.get("text_config")) or config)
        (Path(made) / "config.json").write_text(json.dumps(config))
        yield Path(made)
