"""The repositories that a speech model needs beside its own: codecs, tokenizers and recordings.

mlx-audio fetches them by name when it loads the model, or when the model first speaks. They are listed here so that
Pippin can fetch them with the model and report missing ones. The names come from the modules of mlx-audio 0.6.2; a name
in the model's configuration takes precedence.

Most loads fail without their companions. Some do not: the first request fetches the codec or tokenizer, or mlx-audio
uses random weights for a codec. Those are marked `missed_late`, and only their absence makes Pippin refuse a model
before mlx-audio is asked. `tests/engines/speech/test_companions.py` checks this against mlx-audio's code.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct

from pippin.catalog.names import is_repository
from pippin.core.decoding import from_json
from pippin.core.models import Companion
from pippin.core.published import Json, find_json, table, text, whole

FILES: Final = {
    "weights": ("*.safetensors", "*.json"),
    "tokenizer": ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "config.json"),
}
BERT: Final = ("bert-base-uncased", "bert-base-multilingual-cased")
"""Repositories from the time when Hub names had no organisation."""
LANGUAGE_MODELS: Final = ("", "llama", "qwen2", "qwen3")
SMALL_QWEN: Final = 151936
"""The largest KugelAudio vocabulary that uses the tokenizer of the small Qwen 2.5."""


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """What a family needs: a row of `companions.json`."""

    repository: str  # unless the model's configuration names another
    files: tuple[str, ...]  # words of `FILES`, or patterns
    keys: tuple[str, ...] = ()  # fields that name another; the first that is there counts
    inside: str = ""  # the object in which these fields are
    named_in: str = ""  # the file in which they are, in place of config.json
    unless: tuple[str, ...] = ()  # files and folders of the model that stand in for it
    path_key: str = ""  # the field that names another of these
    switch: str = ""  # a field that is false where it is not needed
    needed: bool = True
    missed_late: bool = False

    def companion(self, folder: Path, config: Json) -> Companion | None:
        """The companion of a model; None where its folder has what stands in for it, or its configuration asks for
        none."""
        own = text(config.get(self.path_key))
        if any((folder / name).exists() for name in ((own,) if own else self.unless)):
            return None
        if self.switch and not config.get(self.switch, True):
            return None
        named = (find_json(folder / self.named_in) or {}) if self.named_in else config
        named = table(named.get(self.inside)) if self.inside else named
        found = (text(named.get(key)) for key in self.keys)
        files = tuple(pattern for name in self.files for pattern in FILES.get(name, (name,)))
        return Companion(
            next(filter(None, found), self.repository), files, self.needed, missed_late=self.missed_late
        )


ROWS: Final = {
    family: rows
    for families, rows in from_json(
        Path(__file__).with_name("companions.json").read_bytes(), dict[str, tuple[Row, ...]]
    ).items()
    for family in families.split()
}
"""The rows of each family of mlx-audio. `llama` and `qwen3` are Orpheus and its like. The recordings of Sesame's two
voices are stored with its tokenizer, or with the original."""


def companions_of(folder: Path, name: str, config: Json) -> tuple[Companion, ...]:
    """The companions of the speech model `name`. A local path in place of a repository counts as present."""
    # The family is mlx-audio's: by type, or by name for language models and for configurations without a type.
    family = text(config.get("model_type")) or ""
    if family in LANGUAGE_MODELS and "outetts" in name.lower():
        family = "outetts"
    elif not family and "delay_pattern" in table(config.get("data")):
        family = "dia"
    elif family == "llama" and "acoustic_dim" in config:
        family = "tada"
    found = [row.companion(folder, config) for row in ROWS.get(family, ())]
    if family == "kugelaudio":
        vocabulary = whole(table(config.get("decoder_config")).get("vocab_size")) or 0
        size = "1.5B" if vocabulary <= SMALL_QWEN else "7B"
        found.insert(0, Companion(f"Qwen/Qwen2.5-{size}", FILES["tokenizer"]))
    return tuple(
        each
        for each in found
        if each is not None and (is_repository(each.repository) or each.repository in BERT)
    )
