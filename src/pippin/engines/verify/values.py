"""Values in a folder's files that are read without an error, and that no publisher of a trained model chooses."""

from collections.abc import Iterator
from typing import Final

import yaml

from pippin.core.published import object_in, real, sentence_file, whole
from pippin.core.verification import Finding
from pippin.engines.language.configuration import rotary_tables
from pippin.engines.verify.findings import data, finding
from pippin.engines.verify.folder import Folder, Json

REAL: Final = 256
"""The width of the smallest models that are trained to be used. Those of tests have windows of a few tokens."""
DRAWN: Final = ("temperature", "top_p", "min_p", "typical_p")
"""Fields that nothing reads where no token is drawn."""
OFF: Final = ("no_repeat_ngram_size", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Fields of which 0 or -1 stands for none."""


def check(folder: Folder) -> Iterator[Finding]:
    """Hold the numbers of a model that may have been trained against what publishers choose."""
    stops = folder.generation.get("stop_strings") or ()
    for stop in (stops,) if isinstance(stops, str) else stops:
        if stop in data("sample.txt"):
            yield finding("stop-is-text", stop=stop)
    if (whole(folder.field("hidden_size")) or 0) < REAL:
        return
    for name, fields in yaml.safe_load(data("values.yaml")).items():
        file = sentence_file(folder.path) if name.startswith("sentence") else name
        said = object_in(folder.path / file)
        for part in _parts(said | folder.text if name == "config.json" else said):
            for field, (least, most) in fields.items():
                value = real(part.get(field))
                if value is not None and not least <= value <= most and not _off(field, value, said):
                    yield finding(
                        "value-unlikely", file=file, field=field, value=part[field], least=least, most=most
                    )


def _parts(said: Json) -> list[Json]:
    """A file's fields, and those of its rotary settings, which may repeat them."""
    tables = [*rotary_tables(said).values()]
    return [
        said,
        *({name: value for name, value in each.items() if said.get(name) != value} for each in tables),
    ]


def _off(field: str, value: float, said: Json) -> bool:
    """Whether a value says that nothing is done, or nothing reads it."""
    draws = said.get("do_sample")
    # A temperature of zero alone asks for no draws.
    unread = field in DRAWN and (draws is False or (field == "temperature" and value == 0 and draws is None))
    return unread or (value in (0, -1) and field in OFF)
