"""`pippin convert`: turns a checkpoint into an MLX model, quantised or not."""

import asyncio
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pippin.catalog.footprint import weight_bytes
from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, roots, run_errand, settings_of
from pippin.cli.terminal import progress, say, size
from pippin.config.errors import ConfigError
from pippin.core.errands import (
    BITS,
    DTYPES,
    GROUP_SIZES,
    MODES,
    RECIPES,
    Conversion,
    Converted,
    Quantization,
)
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec

DTYPE_BITS: Final = {"float32": 32, "float16": 16, "bfloat16": 16, None: 32}
MODE_SHAPES: Final = {"affine": (4, 64), "mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
"""Bits and group size of each mode; only affine allows other values."""


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin convert",
        description="Turn a checkpoint (safetensors) into an MLX model with fewer bits, in less memory than it takes. "
        "Without --bits, --mixed, --mode or --dtype: 4 bits.",
    )
    parser.add_argument(
        "model", help="a name, a folder, or a repository of the hub (org/name), which is downloaded"
    )
    parser.add_argument("--bits", type=int, choices=BITS, help="of a weight")
    parser.add_argument(
        "--group-size", type=int, choices=GROUP_SIZES, help="weights that share a scale (default: 64)"
    )
    parser.add_argument("--mixed", choices=RECIPES, help="fewer bits, and more for the layers that need them")
    parser.add_argument(
        "--mode", choices=MODES, default="affine", help="the format of weights (default: affine)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="of what keeps its bits; alone: unpack the model into it"
    )
    parser.add_argument("--name", help="the new model's name; the old one's with the bits if not given")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="write it there, not into Pippin's own folder"
    )
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    wanted = _quantization(parsed)
    catalog = open_catalog(settings_of(parsed))
    with progress(parsed.model, bytes_counted=True) as tell:
        info = asyncio.run(catalog.ensure(parsed.model, tell, by_operator=True))
    folder = _source(info)
    name = parsed.name or _name(info.id, wanted, parsed.dtype)
    target = parsed.output or roots().imports / name
    _refuse_target(target, name, is_named=parsed.output is None)
    _refuse_full_disk(target, folder, wanted, parsed.dtype)
    asked = Conversion(target=str(target.absolute()), quantization=wanted, dtype=parsed.dtype)
    if info.quantization and wanted is not None:
        say(
            f"{info.id} is quantised already ({info.quantization}) and is rounded a second time: "
            "the original loses less.",
            sys.stderr,
        )
    with progress(f"Converting {info.id}:", bytes_counted=True) as tell:
        done = run_errand("convert", WorkerSpec(info=info), asked, Converted, tell)
    say(_told(info.id, name if parsed.output is None else str(target), done))
    return 0


def _quantization(parsed: Namespace) -> Quantization | None:
    """How to quantise matrices; None if only a dtype is requested. Raises `ConfigError`."""
    if parsed.mode != "affine":
        given = [flag for flag in ("bits", "group_size", "mixed") if getattr(parsed, flag) is not None]
        if given:
            flag = given[0].replace("_", "-")
            raise ConfigError(f"--{flag} goes with --mode affine alone: {parsed.mode} fixes bits and groups.")
        bits, group_size = MODE_SHAPES[parsed.mode]
        return Quantization(bits=bits, group_size=group_size, mode=parsed.mode)
    group_size = parsed.group_size or MODE_SHAPES["affine"][1]
    if parsed.mixed is not None:
        if parsed.bits is not None:
            raise ConfigError(f"--mixed {parsed.mixed} says the bits: leave --bits out.")
        return Quantization(bits=int(parsed.mixed[0]), group_size=group_size, recipe=parsed.mixed)
    if parsed.bits is None and parsed.dtype is not None:
        if parsed.group_size is not None:
            raise ConfigError("--group-size goes with --bits: --dtype alone unpacks the model.")
        return None
    return Quantization(bits=parsed.bits or 4, group_size=group_size)


def _source(info: ModelInfo) -> Path:
    """The folder of the checkpoint. Raises `ServerError` if it can't be converted."""
    if info.kind == "scripted" or info.path is None:
        raise ServerError("unsupported", f"{info.id} is a script and has no weights to convert.")
    if info.kind != "language":
        raise ServerError(
            "unsupported",
            f"{info.id} is of the kind `{info.kind}`: only language models, those with vision too, are converted. "
            "Serve it as it is.",
        )
    folder = Path(info.path)
    if not any(folder.glob("model*.safetensors")):
        raise ServerError(
            "unsupported",
            f"{info.id} has no safetensors weights, which is what can be converted. For a GGUF file: `pippin import`.",
        )
    return folder


def _name(id: str, wanted: Quantization | None, dtype: str | None) -> str:
    """The default name of the result, such as `qwen3-8b-4bit`."""
    base = id.rpartition("/")[2]
    if wanted is None:
        return f"{base}-{dtype}"
    if wanted.mode != "affine":
        return f"{base}-{wanted.mode}"
    return f"{base}-mixed-{wanted.recipe}" if wanted.recipe else f"{base}-{wanted.bits}bit"


def _refuse_target(target: Path, name: str, *, is_named: bool) -> None:
    if "/" in name or name.startswith("."):
        raise ConfigError(f"--name {name}: neither slashes nor a dot at its beginning. --output takes paths.")
    if target.exists():
        way = f"Give another --name, or remove it: pippin rm {name}" if is_named else "Give another --output."
        raise ServerError("conflict", f"{target} is there already. {way}")


def _refuse_full_disk(target: Path, folder: Path, wanted: Quantization | None, dtype: str | None) -> None:
    weights = weight_bytes(folder, 1)
    bits = DTYPE_BITS[dtype] if wanted is None else wanted.most_bits
    needed = weights * bits // 8
    place = next(each for each in (target.absolute(), *target.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ServerError(
            "too_large",
            f"The result takes about {size(needed)}, and {size(free)} are free in {place}. Make room, take fewer "
            "--bits, or name another disk with --output.",
        )


def _told(id: str, name: str, done: Converted) -> str:
    lines = [f"{name} is made of {id}: {size(done.size)}, {done.bits_per_weight:.1f} bits a weight."]
    if done.has_draft_head:
        lines.append("Its prediction head is kept: --mtp drafts with it.")
    lines.append(f"What it cost: pippin verify {name} --against {id}")
    lines.append(f"Talk to it: pippin run {name}    Serve it: pippin serve {name}")
    return "\n".join(lines)
