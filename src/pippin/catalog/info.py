"""Reads a model folder's properties: kind, window, quantisation, capabilities, sampling defaults."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pippin.catalog.companions import companions_of
from pippin.catalog.kinds import kind_of, other_sound, sees, watches
from pippin.catalog.names import is_repository
from pippin.core import parameters as p
from pippin.core.errors import ServerError
from pippin.core.models import Capabilities, ModelInfo, ModelKind
from pippin.core.published import (
    Json,
    begins_with_mark,
    broken,
    chat_templates,
    find_json,
    find_text,
    mistaken,
    object_in,
    real,
    sentence_file,
    table,
    text,
    whole,
)
from pippin.core.requests import Sampling
from pippin.core.safetensors import index_of, instead, missing_shards, stored_weights

WINDOW_KEYS: Final = tuple(
    "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length model_max_length n_ctx".split()
)
DEFAULT_WINDOWS: Final = {
    **dict.fromkeys(("gemma3", "gemma3_text", "gemma4", "gemma4_text"), 131072),
    **dict.fromkeys(("llama4", "mllama", "mistral", "mixtral"), 131072),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "glm4v"), 32768),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3"), 32768),
    "qwen3_vl": 128000,
}
"""Windows of architectures whose config.json may omit them: the defaults of their configurations in transformers, which
checkpoints leave out when they match."""
SMALL: Final = 1 << 20  # bytes; a smaller file is looked at, whether it holds weights at all
NO_LIMIT: Final = 10**9  # tokenizers without a limit write 10^30
FILL_IN_TOKENS: Final = ("fim_prefix", "fim-prefix", "fim_begin", "fim▁begin", "<PRE>", "▁<PRE>", "[PREFIX]")
WHISPER_WEIGHTS: Final = "weights.npz"
"""What Whisper folders hold instead of safetensors: arrays that `mx.load` reads without pickles."""
WITH_TOKENIZER: Final = ("language", "embeddings", "reranking")
TOKENIZERS: Final = ("token*", "vocab.*", "*.model", "*.tiktoken", "tekken.json", "*/tokenizer*")
JSON_FILES: Final = tuple(
    "*config.json token*.json *_tokens*.json *.index.json vocab.json modules.json chat_*.json".split()
)
"""What the libraries read of a model's folder."""
RECURRENT: Final = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv7"})  # families without full attention
WITH_SINKS: Final = frozenset({"gpt_oss"})  # attention with sinks does not support packed keys
FULL: Final = frozenset({"full_attention", "attention", "global_attention"})
INCOMPLETE: Final = "model_incomplete"
"""The code of the error for an incomplete model."""


def _first_module(folder: Path) -> str | None:
    """The class by which sentence-transformers reads a text, if it is its own; None where no modules are named."""
    path = folder / "modules.json"
    if not path.is_file():  # opening a pipe would block
        return None
    with suppress(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        package, _, kind = json.loads(path.read_bytes())[0]["type"].rpartition(".")
        return kind if package.startswith("sentence_transformers") else "Transformer"
    return "Transformer"


def read_info(folder: Path, *, id: str | None = None, kind: ModelKind | None = None) -> ModelInfo:
    """The properties of the model in `folder`, found without its weights. `id` defaults to the folder's name.

    Raises `ServerError("load_failed")` if a file is damaged or missing, or the download is incomplete.
    """
    name = id or folder.name
    found, config = _kind_and_config(folder, name, kind)
    pipeline = find_json(folder / "model_index.json") or {}
    weights = _sizes(stored_weights(folder) or [folder / WHISPER_WEIGHTS] * (found == "transcription"))
    check_complete(folder, name, weights)
    if found in WITH_TOKENIZER and not any(
        path.exists() for each in TOKENIZERS for path in folder.glob(each)
    ):
        raise _incomplete(name, "its tokenizer is missing")
    tokenizer = find_json(folder / "tokenizer_config.json") or {}
    templates = chat_templates(folder, tokenizer.get("chat_template")) if found == "language" else {}
    return ModelInfo(
        id=name,
        kind=found,
        path=str(folder),
        architecture=(text(pipeline.get("_class_name")) if found == "images" else None)
        or text(config.get("model_type")),
        capabilities=_capabilities(found, config, tokenizer, "\n".join(templates.values())),
        context_window=context_window(folder, found, config, tokenizer),
        quantization=quantization(config),
        dtype=_dtype(config),
        size_bytes=sum(size for _, size in weights),
        created=int(_modified(folder)),
        sampling=_sampling(find_json(folder / "generation_config.json") or {})
        if found == "language"
        else Sampling(),
        dimensions=whole(config.get("hidden_size")) if found == "embeddings" else None,
        companions=companions_of(folder, name, config) if found == "speech" else (),
    )


def _kind_and_config(folder: Path, name: str, kind: ModelKind | None) -> tuple[ModelKind, dict[str, Any]]:
    """The kind of the model, unless it is given as `kind`, and its config.json. Raises as `read_info` does, and for a
    model that is not served."""
    read = {path for pattern in JSON_FILES for path in folder.glob(pattern)}
    if marked := next(filter(begins_with_mark, sorted(read)), None):
        what = "begins with a byte order mark, which the model's libraries do not read: save it as UTF-8 without one"
        raise broken(marked, what)
    config = find_json(folder / "config.json")
    if config is None and _under_way(folder):
        raise _incomplete(name, "its config.json is missing")
    found = kind or kind_of(folder, name, config or {})
    if kind is None and found in (None, "language") and (does := other_sound(config or {})) is not None:
        message = f"The model {name} {does}, which Pippin does not serve. docs/audio.md lists the models that it does."
        raise ServerError("load_failed", message)
    if (module := _first_module(folder)) not in ("Transformer", None):
        message = (
            f"The model {name} begins with a module of sentence-transformers, and {module} is not served"
        )
        raise ServerError("load_failed", f"{message}. Choose another.")
    if config is None and (folder / "0_Transformer/config.json").is_file():
        message = f"The model {name} is in its folder 0_Transformer, as old versions of sentence-transformers wrote it"
        raise ServerError("load_failed", f"{message}: move the files of that up, beside modules.json.")
    if config is None and module is not None:
        raise _incomplete(name, "it has modules.json and no config.json")
    if found is None or (config is None and found != "images"):
        message = f"The folder of the model {name} has no usable config.json, so it is not an MLX model."
        if adapter := find_json(folder / "adapter_config.json"):
            base = adapter.get("base_model_name_or_path") or adapter.get("model") or "MODEL"
            message = (
                f"{name} is an adapter. Serve it with its model: pippin serve {base} --adapter-path {folder}"
            )
        raise ServerError("load_failed", message)
    return found, config or {}


def check_complete(folder: Path, name: str, weights: Sequence[tuple[Path, int]]) -> None:
    """Raise `ServerError` if weights are missing entirely or in part, or if their download was interrupted."""
    if _under_way(folder) and not _has_main(folder):
        raise _incomplete(name, "its download was broken off")
    if missing := missing_shards(folder):
        wanted = len(set(index_of(folder).values()))
        raise _incomplete(name, f"{len(missing)} of {wanted} weight files are missing ({missing[0]})")
    for path, size in weights:
        if size < SMALL and (what := mistaken(path)) is not None:
            raise ServerError("load_failed", f"{path.name} of the model {name} {what}.", code=INCOMPLETE)
    if weights:
        return
    if _under_way(folder) or any(path.is_symlink() for path in folder.glob("*.safetensors")):
        raise _incomplete(name, "its weights are missing")
    ways = f"either its download has not ended ({_way_out(name)}), or it is in another format."
    message = f"The model {name} has no weights as safetensors: {instead(folder) or ways}"
    raise ServerError("load_failed", message, code=INCOMPLETE)


def _incomplete(name: str, what: str) -> ServerError:
    message = f"The model {name} is only half downloaded: {what}. To go on: {_way_out(name)}."
    return ServerError("load_failed", message, code=INCOMPLETE)


def _way_out(name: str) -> str:
    return f"`pippin pull {name}`" if is_repository(name) else "fetch or copy it again"


def _under_way(folder: Path) -> bool:
    """Whether the folder is a snapshot in the Hub's cache with unfinished files."""
    return folder.parent.name == "snapshots" and any(folder.parent.parent.glob("blobs/*.incomplete"))


def _has_main(folder: Path) -> bool:
    """Whether `main` refers to a snapshot that is here. Pippin's downloads write that only when the snapshot is
    complete, so unfinished files may then belong to a newer one."""
    main = (find_text(folder.parent.parent / "refs" / "main") or "").strip()
    return bool(main) and (folder.parent / Path(main).name).is_dir()


def context_window(folder: Path, kind: ModelKind, config: Json, tokenizer: Json) -> int | None:
    """Tokens that the model can attend to, including its rope scaling."""
    inner = table(config.get("text_config")) or table(config.get("llm_config"))
    if kind in ("embeddings", "reranking"):
        sentence = object_in(folder / sentence_file(folder))
        limit = whole(sentence.get("max_seq_length"))
        if limit is not None:
            return limit
    if kind in ("images", "speech", "transcription"):
        return None
    for source in (inner, config):
        for key in WINDOW_KEYS:
            window = whole(source.get(key))
            if window is not None and window < NO_LIMIT:
                return min(max(window, _scaled(source)), _chunk(config))
    for source in (inner, config):
        if (window := DEFAULT_WINDOWS.get(text(source.get("model_type")) or "")) is not None:
            return window
    limit = whole(tokenizer.get("model_max_length"))
    return limit if limit is not None and limit < NO_LIMIT else None


def _chunk(config: Json) -> int:
    """Tokens up to which a model answers as published whose layers attend within chunks or windows that the libraries'
    classes do not know: the text model of Llama 4 in mlx-lm, and PaliGemma 2 in mlx-vlm."""
    match config:
        case {"model_type": "llama4_text", "attention_chunk_size": int(most)} if most > 0:
            return most
        case {"model_type": "paligemma", "text_config": {"sliding_window": int(most)}} if most > 0:
            return most
    return NO_LIMIT


def _scaled(config: Json) -> int:
    """The context window in tokens with YaRN scaling; 0 without it.

    With other scalings, `max_position_embeddings` is the scaled window already.
    """
    scaling = table(config.get("rope_scaling")) or table(config.get("rope_parameters"))
    kind = scaling.get("rope_type", scaling.get("type"))
    factor, original = real(scaling.get("factor")), whole(scaling.get("original_max_position_embeddings"))
    if kind != "yarn" or factor is None or original is None or not math.isfinite(factor):
        return 0
    return min(round(factor * original), NO_LIMIT)


def full_attention_layers(config: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """The layers that keep keys and values of all tokens, which are the ones that `kv_bits` packs, from config.json.

    Returns their indices, from 0, and the number of all layers.
    """
    text: dict[str, Any] = config.get("text_config") or config
    count = int(text.get("num_hidden_layers") or text.get("n_layers") or text.get("n_layer") or 0)
    family = text.get("model_type") or config.get("model_type")
    # Attention that selects tokens by an index has none that could be packed: it splits its latent vectors.
    if family in RECURRENT or family in WITH_SINKS or "index_topk" in text:
        return (), count
    return tuple(place for place in range(count) if is_full(text, place)), count


def is_full(config: dict[str, Any], place: int) -> bool:
    """Whether a layer attends to all tokens."""
    match config:
        case {"layer_types": [*types]} if place < len(types):
            return types[place] in FULL
        case {"full_attn_idxs": [*places]}:
            return place in places
        case {"hybrid_override_pattern": str(kinds)} if place < len(kinds):
            return kinds[place] == "*"
        case {"full_attention_interval": int(every)}:
            return (place + 1) % every == 0
        case {"sliding_window_pattern": int(every), "sliding_window": int()}:
            return (place + 1) % every == 0
        case {"attn_layer_period": int(every), "attn_layer_offset": int(first)}:
            return place % every == first
        case _:
            return True


def quantization(config: Json) -> str | None:
    """The quantisation in words, as in "4-bit, group 64"; None for an unquantised model."""
    settings = table(config.get("quantization")) or table(config.get("quantization_config"))
    bits = whole(settings.get("bits"))
    if bits is None:
        return text(settings.get("quant_method"))
    mode, group = text(settings.get("mode")), whole(settings.get("group_size"))
    words = [f"{bits}-bit" if mode in (None, "affine") else str(mode)]
    if group is not None:
        words.append(f"group {group}")
    others = {whole(table(value).get("bits")) for value in settings.values() if isinstance(value, dict)}
    different = sorted(other for other in others if other is not None and other != bits)
    if different:
        words.append("parts " + " and ".join(f"{other}-bit" for other in different))
    return ", ".join(words)


def _dtype(config: Json) -> str | None:
    for source in (config, table(config.get("text_config"))):
        dtype = text(source.get("dtype")) or text(source.get("torch_dtype"))
        if dtype is not None:
            return dtype.removeprefix("torch.")
    return None


def _capabilities(kind: ModelKind, config: Json, tokenizer: Json, template: str) -> Capabilities:
    """A guess from the files; the worker, which parses the template's format, is more accurate."""
    if kind == "embeddings":
        return Capabilities(embeddings=True, images=sees(config))
    if kind == "reranking":
        return Capabilities(images=sees(config))
    if kind != "language":
        return Capabilities()
    tokens = json.dumps(tokenizer.get("added_tokens_decoder"), ensure_ascii=False)
    return Capabilities(
        chat=bool(template),
        tools="tools" in template,
        reasoning="<think>" in template or "enable_thinking" in template,
        images=sees(config),
        video=watches(config),
        audio=bool(table(config.get("audio_config"))),
        infill=any(token in tokens for token in FILL_IN_TOKENS),
    )


def _sampling(generation: Json) -> Sampling:
    """The checkpoint's sampling defaults, without values that are out of range or have no effect."""
    said: dict[str, Any] = {}
    for parameter in p.OF_CHECKPOINTS:
        value: Any = generation.get(parameter.name)
        if parameter.holds(value) and parameter.acts(value):
            said[parameter.name] = float(value) if parameter.type == "float" else value
    # A nucleus without any probability holds the likeliest token alone.
    if generation.get("top_p") == 0:
        said["top_k"] = 1
    if generation.get("do_sample") is False:
        said["temperature"] = 0.0
    return Sampling(**said)


def _sizes(weights: list[Path]) -> list[tuple[Path, int]]:
    """These files and their sizes. A dangling link is a file that is not downloaded yet, and is left out."""
    found = []
    for path in weights:
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def _modified(folder: Path) -> float:
    # Folders saved by mflux have neither file.
    for path in (folder / "config.json", folder / "model_index.json", folder):
        with suppress(OSError):
            return path.stat().st_mtime
    raise broken(folder / "config.json", "cannot be read")
