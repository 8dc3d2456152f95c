"""`pippin show`: facts about a model, and the sampling defaults of its requests."""

import contextlib
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.cli.arguments import JSON, argument, of_catalog, verb
from pippin.cli.local import open_catalog, settings_of
from pippin.cli.running import ask, is_there
from pippin.cli.terminal import as_json, size
from pippin.cli.verbs.running_server import rewritten
from pippin.config.accelerator import accelerator
from pippin.config.verified import last_agreement
from pippin.core.errors import ServerError
from pippin.core.parameters import left_out
from pippin.core.published import chat_templates, find_text, object_in
from pippin.core.requests import Sampling

if TYPE_CHECKING:
    from pippin.catalog import Catalog
    from pippin.core.models import ModelInfo


@verb(
    "show",
    argument("model", help="a name, a part of one, an alias or a folder"),
    JSON,
    of_catalog,
)
def show(parsed: Namespace) -> int:
    settings = settings_of(parsed)
    catalog = open_catalog(settings)
    try:
        info = catalog.resolve(parsed.model, by_operator=True)
    except ServerError:
        if not (served := _served(parsed.model)):  # by a path that the server alone was told
            raise
        print(as_json(served))
        return 0
    if parsed.json:
        print(as_json(info))
        return 0
    facts = _facts(catalog, info)
    served = _served(info.id)
    if told := served.get("agreement") or last_agreement(info.id):
        facts["batches"] = f"as alone, within {told}"
    if served and (told := rewritten(served)):
        facts["conversations"] = told
    if info.kind == "language":
        from pippin.service.service import explain_sampling

        options = catalog.options_for(info)
        defaults = explain_sampling(Sampling(), options, settings.server.model_defaults, info)
        told = (f"{setting.name} {setting.value} ({setting.origin})" for setting in defaults)
        facts["sampling"] = ", ".join(told)
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        print(f"{name:<{width}}{value}")
    return 0


def _facts(catalog: "Catalog", info: "ModelInfo") -> dict[str, Any]:
    from pippin.catalog import footprint

    able = [name for name, can in msgspec.structs.asdict(info.capabilities).items() if can]
    needed = footprint(info, catalog.options_for(info)) if info.path else 0
    return {
        "id": info.id,
        "kind": info.kind,
        "path": info.path or "-",
        "architecture": info.architecture or "-",
        "size": size(info.size_bytes),
        "weights": info.quantization or info.dtype or "-",
        "in memory": f"about {size(needed)}: weights and process; `pippin fit` adds contexts"
        if needed
        else "-",
        "window": f"{info.context_window} tokens" if info.context_window else "-",
        "capabilities": ", ".join(able) or "-",
        **_formats(catalog, info),
        **(_of_text(catalog, info, Path(info.path)) if info.kind in TEXT_KINDS and info.path else {}),
    }


def _served(model: str) -> dict[str, Any]:
    """What a running server tells of a model; nothing where none runs or knows it."""
    asked = Namespace(server=None, api_key=None)
    with contextlib.suppress(ServerError):
        if is_there(asked):
            return dict(ask(asked, "GET", f"/v1/models/{model}"))
    return {}


def _formats(catalog: "Catalog", info: "ModelInfo") -> dict[str, str]:
    """A model's formats of tool calls and reasoning: set by the operator, else detected from its chat template."""
    if info.kind != "language" or not info.path:
        return {}
    from pippin.output import formats

    folder, options = Path(info.path), catalog.options_for(info)
    if options.chat_template_file is not None:
        template = find_text(Path(options.chat_template_file).expanduser())
    else:
        written = object_in(folder / "tokenizer_config.json").get("chat_template")
        template = chat_templates(folder, written).get("default")
    found = formats.detect(template or "", info.architecture)
    own, thinks = options.tool_call_parser, options.reasoning_parser
    tool = formats.tool_format(own) if own else found.tools
    reasoning = formats.reasoning_format(thinks) if thinks else found.reasoning
    return {
        "tool calls": "-" if tool is None else tool.name,
        "reasoning": "-" if reasoning is None else reasoning.name,
    }


TEXT_KINDS = ("language", "embeddings", "reranking")


def _of_text(catalog: "Catalog", info: "ModelInfo", folder: Path) -> dict[str, str]:
    from pippin.catalog.footprint import runs_on_kernels

    config = object_in(folder / "config.json")
    found = {}
    if info.kind == "language":
        found["kv_bits"] = _packed_layers(config)
        # The fields of generation_config.json that change no answer here.
        if names := left_out(object_in(folder / "generation_config.json")):
            found["left out"] = f"{', '.join(names)} of generation_config.json"
    if accelerator() == "cpu":
        packed = runs_on_kernels(config, catalog.options_for(info), info.kind)
        found["on a CPU"] = "by the kernels, as stored" if packed else "float32, or in part by the kernels"
    return found


def _packed_layers(config: dict[str, Any]) -> str:
    """The layers whose keys and values `kv_bits` quantises."""
    from pippin.catalog.info import full_attention_layers

    layers, count = full_attention_layers(config)
    if not count:
        return "-"
    if not layers:
        return "refused: no layer can be packed"
    if len(layers) == count:
        return f"packs all {count} layers"
    return f"packs layers {', '.join(map(str, layers))} of 0 to {count - 1}"
