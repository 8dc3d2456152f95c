"""A model's folder as its files say it, read once and without their weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pippin.core.published import object_in, table
from pippin.core.safetensors import Header, StoredArray, find_whole, index_of
from pippin.engines.language.upstream.stored import EMBEDDING, OF_MEDIA

Json = dict[str, Any]


@dataclass(frozen=True)
class Folder:
    """The configurations of a model, its index, and the headers of its weight files."""

    path: Path
    config: Json
    generation: Json
    tokenizer: Json  # tokenizer_config.json
    index: dict[str, str] | None  # tensors to files; None without an index
    headers: dict[str, Header | None]  # by file; None for a file that is damaged or cut off

    @classmethod
    def read(cls, path: Path) -> "Folder":
        """Read a folder. A file that is missing or no JSON object counts as empty."""
        return cls(
            path=path,
            config=object_in(path / "config.json"),
            generation=object_in(path / "generation_config.json"),
            tokenizer=object_in(path / "tokenizer_config.json"),
            index=index_of(path) or None,
            headers={file.name: find_whole(file) for file in sorted(path.glob("model*.safetensors"))},
        )

    @property
    def text(self) -> Json:
        """The configuration of the language model."""
        return table(self.config.get("text_config")) or self.config

    def field(self, name: str) -> Any:
        """A field of the configuration: the language model's, else the whole model's."""
        found = self.text.get(name)
        return self.config.get(name) if found is None else found

    @cached_property
    def tensors(self) -> dict[str, tuple[str, StoredArray]]:
        """The file and the header's entry of each tensor."""
        return {
            name: (file, array)
            for file, header in self.headers.items()
            if header is not None
            for name, array in header.arrays.items()
        }

    @cached_property
    def embedding(self) -> str | None:
        """The name of the matrix with a row for each token."""
        return next(
            (name for name in self.tensors if EMBEDDING.search(name) and not OF_MEDIA.search(name)), None
        )

    @property
    def rows(self) -> int | None:
        """How many tokens have an embedding."""
        return None if self.embedding is None else self.tensors[self.embedding][1].shape[0]
