"""What a model folder says of its tokenizer, for clients that ask."""

from pathlib import Path

from pippin.catalog.folder_files import Json, find_json, find_text


def tokenizer_settings(folder: Path) -> Json | None:
    """What `tokenizer_config.json` says, without paths, and the chat template where that is a file of its own."""
    settings = find_json(folder / "tokenizer_config.json")
    if settings is None:
        return None
    for name in ("name_or_path", "_name_or_path", "tokenizer_file", "vocab_file"):
        settings.pop(name, None)
    if (template := find_text(folder / "chat_template.jinja")) is not None:
        settings["chat_template"] = template
    return settings
