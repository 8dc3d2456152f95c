"""Builds model folders as downloads leave them, with a few bytes of weights."""

import json
import struct
from pathlib import Path
from typing import Any

TINY = {"model.embed_tokens.weight": ("F16", [8, 4])}


def write_safetensors(path: Path, arrays: dict[str, tuple[str, list[int]]]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in arrays.items():
        size = {"F32": 4, "U32": 4, "F16": 2, "BF16": 2}[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(offset))


def write_model(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    """A folder with weights and the JSON files given by name without their ending."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config": {"model_type": "llama", "max_position_embeddings": 64} if config is None else config,
        **files,
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", TINY)
    return folder


def write_hub_model(
    hub: Path, repository: str, config: dict[str, Any] | None = None, commit: str = "abc123"
) -> Path:
    """As huggingface_hub lays it out: blobs, and a snapshot of links to them."""
    root = hub / ("models--" + repository.replace("/", "--"))
    staged = write_model(root / "staged", config)
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    for file in staged.iterdir():
        file.rename(root / "blobs" / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"blob-{file.name}")
    staged.rmdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    return snapshot
