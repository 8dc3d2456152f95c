"""Files of a model's folder as publishers write them: JSON that Python reads, and files that are not what they are
called."""

import codecs
import json
import re
import stat
from pathlib import Path
from typing import Any, Final

from msgspec import ValidationError

from pippin.core.decoding import convert
from pippin.core.errors import ServerError

LARGEST: Final = 64 * 1024 * 1024  # bytes of a file that is read whole
FLOAT: Final = "__float__"
FLOATS: Final = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
"""Numbers that JSON does not have. Python writes them bare, transformers as `{"__float__": "Infinity"}`."""

LFS: Final = b"version https://git-lfs"
# Not a `<` alone: safetensors begin with their header's length, whose first byte may be one.
WEB_PAGE: Final = re.compile(rb"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)
HUB_PREFIX: Final = "models--"
SENTENCE_KINDS: Final = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
MORE_TEMPLATES: Final = "additional_chat_templates"


def _number(found: dict[str, Any]) -> Any:
    named = found.get(FLOAT)
    return FLOATS[named] if len(found) == 1 and isinstance(named, str) and named in FLOATS else found


def object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where the file is missing or `find_json` refuses it."""
    try:
        return find_json(path) or {}
    except ServerError:
        return {}


def find_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file. Raises `ServerError` for any other content."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block, and a device has no end
            raise broken(path, "is no ordinary file")
        if status.st_size > LARGEST:
            raise broken(path, "is too large to be read")
        document = json.loads(path.read_bytes(), object_hook=_number)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise broken(path, mistaken(path) or "is not JSON: fetch it again") from error
    if not isinstance(document, dict):
        raise broken(path, "does not hold a JSON object")
    return document


def fields_in(folder: Path, file: str, **types: Any) -> dict[str, Any]:
    """Fields of a JSON file of a model's folder, read as these types; None for one that is null or missing. Raises
    `ServerError` naming the file and a field of another type."""
    said = find_json(folder / file) or {}
    return {name: typed(folder, file, name, said.get(name), type_) for name, type_ in types.items()}


def sentence_file(folder: Path) -> str:
    """The name of the file that says how sentence-transformers' Transformer reads texts: older ones have the type of
    the model in it."""
    names = (f"sentence_{kind}_config.json" for kind in SENTENCE_KINDS)
    return next((name for name in names if object_in(folder / name)), "sentence_bert_config.json")


def typed(folder: Path, file: str, name: str, value: Any, type_: Any) -> Any:
    """The value of one such field. Raises `ServerError` as `fields_in` does."""
    try:
        return None if value is None else convert(value, type_)
    except ValidationError as error:
        message = f"{file} of the model {name_of(folder)} can't be used: its field {name} is wrong ({error})."
        raise ServerError("load_failed", message) from error


def begins_with_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark that some editors write before UTF-8. Raises `OSError`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def find_text(path: Path) -> str | None:
    """The text of a file; None if it is missing or cannot be read."""
    try:
        small = path.is_file() and path.stat().st_size <= LARGEST
        return path.read_text("utf-8-sig") if small else None
    except (OSError, UnicodeDecodeError):
        return None


def chat_templates(folder: Path, of_tokenizer: object) -> dict[str, str]:
    """The chat templates of a folder by name; the usual one is `default`.

    `of_tokenizer` is what tokenizer_config.json has. Before it come, as in transformers, a file of its own, and what
    older files have for the processor of a model that takes media.
    """
    written: object = find_text(folder / "chat_template.jinja")
    for file in ("chat_template.json", "processor_config.json"):
        found = object_in(folder / file).get("chat_template") if written is None else None
        written = found if "{" in str(found) else written  # some processors have the name of a template there
    written = of_tokenizer if written is None else written
    match written:
        case list():
            named = {str(table(each).get("name")): table(each).get("template") for each in written}
        case dict():
            named = dict(written)
        case _:
            named = {"default": written}
    named |= {path.stem: find_text(path) for path in sorted(folder.glob(f"{MORE_TEMPLATES}/*.jinja"))}
    return {name: text for name, text in named.items() if isinstance(text, str) and text}


def broken(path: Path, what: str) -> ServerError:
    return ServerError("load_failed", f"{path.name} of the model {name_of(path.parent)} {what}.")


def table(value: object) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def name_of(folder: Path) -> str:
    """What to call the model in `folder`: the repository of a snapshot in the Hub's cache, else the folder's name."""
    root = folder.parent.parent.name
    if folder.parent.name == "snapshots" and root.startswith(HUB_PREFIX):
        return root.removeprefix(HUB_PREFIX).replace("--", "/")
    return folder.name


def mistaken(path: Path) -> str | None:
    """What a file is in place of its content, as the end of a sentence that says the way out; None if nothing is seen.
    Raises `OSError`."""
    if not path.is_file():  # opening a pipe would block
        return "is no ordinary file"
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        return "is empty: fetch it again"
    if start.startswith(LFS):
        return "is a Git LFS pointer in place of the file: `git lfs pull` in its folder fetches it"
    if WEB_PAGE.match(start):
        return "is a web page: fetch it again, from the address of the file itself"
    return None


Json = dict[str, Any]  # untrusted


def whole(value: object) -> int | None:
    """A positive integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
