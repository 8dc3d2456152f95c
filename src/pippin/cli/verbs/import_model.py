"""`pippin import`: turns a GGUF file into an MLX model folder."""

import re
from collections.abc import Sequence
from pathlib import Path

from pippin.cli.arguments import Parser
from pippin.cli.local import roots
from pippin.cli.terminal import progress, size


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin import", description="Turn a GGUF file into an MLX model in Pippin's own folder."
    )
    parser.add_argument("file", help="the GGUF file, or its name among the models of LM Studio or Ollama")
    parser.add_argument("--name", help="the model's name; the file's if not given")
    parser.add_argument("--if-missing", action="store_true", help="do nothing if the name is taken")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    places = roots()
    imports, file = places.imports, Path(parsed.file)
    name = parsed.name or file.stem.lower()
    if not file.exists():
        from pippin.catalog.others import scan_others

        found = next((each for each in scan_others(places.others) if each.id == parsed.file), None)
        if found is not None and found.is_gguf:
            file, name = found.folder, parsed.name or re.sub("[/:]", "-", found.id).lower()
    if parsed.if_missing and (imports / name / "config.json").is_file():
        return 0
    from pippin.catalog.gguf import import_gguf

    with progress(f"Importing {name}:", bytes_counted=True) as tell:
        info = import_gguf(file, imports, name, tell)
    print(f"{name} is imported ({size(info.size_bytes)}). Serve it: pippin serve {name}")
    return 0
