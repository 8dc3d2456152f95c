"""`pippin import`: turns a GGUF file into an MLX model folder."""

from collections.abc import Sequence
from pathlib import Path

from pippin.cli.arguments import Parser
from pippin.cli.local import roots
from pippin.cli.terminal import progress, size


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin import", description="Turn a GGUF file into an MLX model in Pippin's own folder."
    )
    parser.add_argument("file", type=Path, help="the GGUF file")
    parser.add_argument("--name", help="the model's name; the file's if not given")
    parser.add_argument("--if-missing", action="store_true", help="do nothing if the name is taken")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    name = parsed.name or parsed.file.stem.lower()
    imports = roots().imports
    if parsed.if_missing and (imports / name / "config.json").is_file():
        return 0
    from pippin.catalog.gguf import import_gguf

    with progress(f"Importing {name}:", bytes_counted=True) as tell:
        info = import_gguf(parsed.file, imports, name, tell)
    print(f"{name} is imported ({size(info.size_bytes)}). Serve it: pippin serve {name}")
    return 0
