"""The engine of embedding models: a vector for each text or conversation with media, in batches across requests.

Encoders (BERT, RoBERTa, ModernBERT) are mlx-vlm's. Every other model is run as a language model whose hidden states
after the last norm are pooled. How states are pooled is read from the folder's sentence-transformers files
(`modules.json`, `1_Pooling/config.json`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import msgspec
import numpy as np
from msgspec import DecodeError, Meta, Struct

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Embedded, Event
from pippin.core.models import WorkerSpec
from pippin.core.published import broken, fields_in, sentence_file
from pippin.core.tasks import Conversation, Embed, Task
from pippin.engines.base import Job, LoadProgress, NeedsWeightsError, Preparer
from pippin.engines.conversations import EncodingPreparer
from pippin.engines.encoding import (
    EncoderInput,
    EncodingEngine,
    EncodingJob,
    Floats,
    Forward,
    floats,
    gathered,
    padded,
    unit,
)
from pippin.engines.language.model.encoders import ACTIVATIONS as OF_LAYERS
from pippin.engines.language.model.encoders import (
    arrays_aside,
    attends_both_ways,
    body_of,
    hidden_states,
    is_encoder,
)
from pippin.engines.language.model.weights import refuse_unreadable
from pippin.engines.language.text.tokenizer import TooLong
from pippin.engines.messages import messages_of
from pippin.engines.refusals import refused

NOT_COMPUTED: dict[str, str] = {
    "colqwen2_5": "it gives a vector for each token, and an answer here has one for each input",
    "colidefics3": "it gives a vector for each token, and an answer here has one for each input",
    "late interaction": "it gives a vector for each token (ColBERT), and an answer here has one for each input",
    "siglip": "mlx-vlm computes its text tower alone (mlx_vlm/models/siglip), so that no picture can be compared",
    "llama_nemotron_vl_embedding": "mlx-vlm has no processor of it, and the checkpoint's own is Python code",
    "embedding_gemma2": "mlx-vlm's model of it is called in one piece with all its media, which is not built in",
}
"""The architectures that mlx-vlm names for embeddings and that are refused, each with its reason."""

MODES: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The pooling modes of sentence-transformers by the flags that name them, in the order in which several are joined."""

SENTENCE = "sentence_embedding"
"""sentence-transformers' name for the vector of a text."""

LAID_OVER = ("config_args", "config_kwargs", "tokenizer_args", "processor_kwargs")
"""Fields of sentence-transformers' file that are laid over config.json and tokenizer_config.json."""

OF_BATCHES = {"max_length", "padding", "return_tensors", "truncation"}
"""What sentence-transformers may tell a tokenizer and changes no vector of a text that is short enough."""

READ = ("text", "common", "chat_template")

Step = Callable[[mx.array], mx.array]

ACTIVATIONS: dict[str, Step] = {
    "Identity": lambda x: x,
    **{name: OF_LAYERS[name.lower()] for name in ("Tanh", "ReLU", "GELU", "SiLU")},
    "Sigmoid": mx.sigmoid,
}
"""torch's activations that a Dense module of sentence-transformers may name."""


def normalized(vectors: mx.array) -> mx.array:
    return vectors / mx.maximum(mx.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Pooling(Struct, frozen=True):
    """How hidden states become one vector: the modes whose vectors are joined, and what is done to the result."""

    modes: tuple[str, ...]
    steps: tuple[Step, ...]
    name: str = ""  # of the model

    def finished(self, vectors: mx.array) -> mx.array:
        try:
            for step in self.steps:
                vectors = step(vectors)
        except ValueError as error:  # MLX's, of arrays of other sizes
            raise _not_computed(
                self.name, f"its modules.json has a module of another size ({error})"
            ) from error
        return vectors


def pool(states: mx.array, mask: mx.array, modes: tuple[str, ...]) -> mx.array:
    """The vectors [batch, modes * hidden] of states [batch, length, hidden], of which `mask` [batch, length] has 1 for
    a token and 0 for the padding on its right. The formulas are sentence-transformers'."""
    states, weights = states.astype(mx.float32), mask[..., None].astype(mx.float32)
    places = weights * mx.arange(1, states.shape[1] + 1, dtype=mx.float32)[None, :, None]
    found = {
        "cls": lambda: states[:, 0],
        "max": lambda: mx.where(weights > 0, states, -mx.inf).max(axis=1),
        "mean": lambda: (states * weights).sum(axis=1) / weights.sum(axis=1),
        "mean_sqrt_len_tokens": lambda: (states * weights).sum(axis=1) / mx.sqrt(weights.sum(axis=1)),
        "weightedmean": lambda: (states * places).sum(axis=1) / places.sum(axis=1),
        "lasttoken": lambda: states[mx.arange(len(states)), mask.sum(axis=1).astype(mx.int32) - 1],
    }
    return mx.concatenate([found[mode]() for mode in modes], axis=-1)


def read_pooling(folder: Path, stored: Mapping[str, mx.array], usual: str) -> Pooling:
    """The pooling that a folder's sentence-transformers files name; without them the `usual` one, normalised.

    Conversions to MLX have the weights of Dense modules beside the model's, as `dense.0.weight` and on: these are
    `stored`. Raises `ServerError("load_failed")` naming a module or a setting that is not computed here.
    """
    beside: list[dict[str, mx.array]] = []
    while (weight := stored.get(f"dense.{len(beside)}.weight")) is not None:
        bias = stored.get(f"dense.{len(beside)}.bias")
        beside.append({"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias}))
    said = fields_in(folder, "config_sentence_transformers.json", truncate_dim=Annotated[int, Meta(ge=1)])
    size = said["truncate_dim"]
    cut: tuple[Step, ...] = (lambda vectors: vectors[:, :size],) if size is not None else ()
    file = folder / "modules.json"
    if not file.exists():
        if "splade" in folder.name.lower():
            raise _not_computed(folder.name, "it is a sparse encoder (SPLADE)")
        if (folder / "1_Dense").is_dir():
            refuse_unknown(folder.name, "late interaction")
        found = _modes(folder, "1_Pooling") if (folder / "1_Pooling/config.json").is_file() else (usual,)
        linear = (_linear(*arrays.values()) for arrays in beside)
        return Pooling(found, (*linear, normalized, *cut), folder.name)
    modes: tuple[str, ...] = ()
    steps: list[Step] = []
    unknown: list[str] = []
    for module in modules_in(file):
        kind, place = str(module.get("type")), str(module.get("path") or "")
        path = folder / place
        if kind.startswith("pylate"):
            refuse_unknown(folder.name, "late interaction")
        if not kind.startswith("sentence_transformers."):
            unknown.append(f"{kind}, code of its own")
            continue
        match kind.rpartition(".")[2]:
            case "Dropout":  # which acts in training alone
                pass
            case "Transformer":
                if place and (path / "config.json").is_file():
                    raise _not_computed(folder.name, f"its Transformer is in {place}: move its files up")
                _refuse_other_states(folder.name, path)
            case "Pooling":
                modes = _modes(folder, place)
            case "Normalize":
                _refuse_other_places(folder, place)
                steps.append(normalized)
            case "Dense":
                steps.append(_dense(folder, place, beside))
            case "LayerNorm":
                steps.append(_layer_norm(folder.name, path))
            case other:
                unknown.append(other)
    if unknown or not modes:
        raise _not_computed(folder.name, f"its modules.json names {', '.join(unknown) or 'no Pooling'}")
    return Pooling(modes, (*steps, *cut), folder.name)


def modules_in(file: Path) -> list[dict[str, Any]]:
    """The rows of modules.json. Raises `ServerError("load_failed")` naming one that is wrong."""
    try:
        return from_json(file.read_bytes(), list[dict[str, Any]])
    except (DecodeError, UnicodeDecodeError) as error:
        raise broken(file, f"can't be used ({error})") from error


def _modes(folder: Path, place: str) -> tuple[str, ...]:
    if not (folder / place / "config.json").is_file():
        raise broken(
            folder / "modules.json", f"names {place}, which has no config.json: fetch the folder again"
        )
    flags = dict.fromkeys((*MODES, "include_prompt"), bool)
    config = fields_in(folder, f"{place}/config.json", pooling_mode=str | list[str], **flags)
    named = config["pooling_mode"] or [mode for flag, mode in MODES.items() if config[flag]] or "mean"
    modes = (named,) if isinstance(named, str) else tuple(named)
    if other := [mode for mode in modes if mode not in MODES.values()]:
        raise _not_computed(folder.name, f"the pooling_mode of {place}/config.json is {', '.join(other)}")
    if config["include_prompt"] is False:
        raise _not_computed(
            folder.name, f"{place}/config.json leaves the prompt out (include_prompt is false)"
        )
    return modes


def _refuse_other_states(name: str, folder: Path) -> None:
    """Raises `ServerError("load_failed")` for a Transformer module that gives no states of its last layer, or reads
    texts in another way than its tokenizer."""
    kinds: dict[str, Any] = dict.fromkeys(
        ("modality_config", "processing_kwargs"), dict[str, dict[str, Any] | None]
    )
    kinds |= dict.fromkeys(LAID_OVER, dict[str, Any])
    config = fields_in(folder, file := sentence_file(folder), transformer_task=str, **kinds)
    laid = {
        f"{key} of its {field}" for field in LAID_OVER for key in config[field] or () if key != "padding_side"
    }
    if laid:
        raise _not_computed(
            name, f"{', '.join(sorted(laid))} in {file} belong into the files that they change"
        )
    text = (config["modality_config"] or {}).get("text") or {}
    output = text.get("method_output_name") or "last_hidden_state"
    method, task = text.get("method") or "forward", config["transformer_task"] or "feature-extraction"
    if (output, method, task) != ("last_hidden_state", "forward", "feature-extraction"):
        raise _not_computed(name, f"its {file} asks for {output} of {method} of {task}")
    read = config["processing_kwargs"] or {}
    other = {*(read.get("text") or {}), *(read.get("common") or {})} - OF_BATCHES
    if other := other | {part for part, held in read.items() if held and part not in READ}:
        raise _not_computed(name, f"its processing_kwargs have {', '.join(sorted(other))}")


def _refuse_other_places(folder: Path, place: str) -> None:
    """Raises `ServerError("load_failed")` for a module that reads or writes anything but the vectors of texts."""
    names = fields_in(folder, f"{place}/config.json", module_input_name=str, module_output_name=str)
    source = names["module_input_name"] or SENTENCE
    target = names["module_output_name"] or source
    if (source, target) != (SENTENCE, SENTENCE):
        raise _not_computed(folder.name, f"{place}/config.json makes {target} of {source}")


def _dense(model: Path, place: str, beside: list[dict[str, mx.array]]) -> Step:
    """sentence-transformers' Dense: a linear layer and an activation, and its input or a projection of it beside them
    where it says so. Its weights are in its own folder, or the first of those `beside` the model's, which are taken
    out. Raises `ServerError("load_failed")`."""
    kinds: dict[str, Any] = {"activation_function": str, "use_residual": bool, "bias": bool}
    config = fields_in(model, f"{place}/config.json", **kinds, out_features=int, in_features=int)
    is_stored = bool(beside) and not (model / place / "model.safetensors").exists()
    arrays = beside.pop(0) if is_stored else _arrays(model.name, model / place, "linear.weight")
    # Conversions may leave the configuration out, for EmbeddingGemma's layers, which are linear.
    is_linear = is_stored and not (model / place / "config.json").exists()
    usual = "torch.Identity" if is_linear else "torch.Tanh"
    module, _, activation = (config["activation_function"] or usual).rpartition(".")
    _refuse_other_places(model, place)
    if activation not in ACTIVATIONS or not module.startswith("torch"):
        raise _not_computed(model.name, f"{place}/config.json has the activation {module}.{activation}")
    out, into = arrays["linear.weight"].shape
    biased = "linear.bias" in arrays and arrays["linear.bias"].shape == (out,)
    linear = _linear(arrays["linear.weight"], arrays.get("linear.bias"))
    projection = arrays.get("residual.weight")
    passes = projection is not None or (config["use_residual"] is True and out == into)
    has = {"out_features": out, "in_features": into, "bias": biased, "use_residual": passes}
    if wrong := [name for name in has if config[name] not in (None, has[name])]:
        raise _not_computed(model.name, f"{place}/config.json has {wrong[0]}, and other weights beside it")
    if not config["use_residual"]:
        return lambda vectors: ACTIVATIONS[activation](linear(vectors))
    passed = ACTIVATIONS["Identity"] if projection is None else _linear(projection)
    return lambda vectors: ACTIVATIONS[activation](linear(vectors)) + passed(vectors)


def _linear(weight: mx.array, bias: mx.array | None = None) -> Step:
    return lambda vectors: vectors @ weight.T + (0.0 if bias is None else bias)


def _layer_norm(name: str, folder: Path) -> Step:
    """sentence-transformers' LayerNorm. Raises `ServerError("load_failed")`."""
    arrays = _arrays(name, folder, "norm.weight")
    return lambda vectors: mx.fast.layer_norm(vectors, arrays["norm.weight"], arrays.get("norm.bias"), 1e-5)


def _arrays(name: str, folder: Path, needed: str) -> dict[str, mx.array]:
    """The arrays of a module, in float32."""
    try:
        found = mx.load(str(folder / "model.safetensors"))
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_computed(name, f"{folder.name}/model.safetensors cannot be read ({error})") from error
    assert isinstance(found, dict)  # of a safetensors file
    if found.get(needed, mx.array(0)).ndim != (2 if needed.startswith("linear") else 1):
        raise _not_computed(name, f"{folder.name}/model.safetensors has no {needed} of its form")
    return {key: array.astype(mx.float32) for key, array in found.items()}


def _not_computed(name: str, reason: str) -> ServerError:
    return ServerError(
        "load_failed", f"The vectors of {name} are not computed here: {reason}. Choose another model."
    )


class EmbeddingPreparer(EncodingPreparer):
    """Tokenizes the inputs of a request and checks their lengths against the model's limit."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        refuse_unknown(spec.info.id, str(self.config.get("model_type")))
        kind = self.sentences["model_type"] or "SentenceTransformer"
        if kind != "SentenceTransformer":
            raise _not_computed(
                spec.info.id, f"its config_sentence_transformers.json says that it is a {kind}"
            )
        self._by_purpose = {name.lower(): text for name, text in self.prompts.items()}
        named = self.sentences["default_prompt_name"]
        if named is not None and named not in self.prompts:
            raise _not_computed(spec.info.id, f"its default_prompt_name {named!r} is none of its prompts")
        self._default_prompt = self.prompts.get(named, "")
        self._messages = messages_of(self.folder)
        # The model's own, once it is loaded.
        self.pooling = Pooling((), ())
        self.dimensions: int | None = None
        if not is_encoder(self.config):
            self.see(spec)

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        assert isinstance(task, Embed)
        if task.dimensions is not None:
            if self.dimensions is None:
                raise NeedsWeightsError
            if task.dimensions > self.dimensions:
                raise refused("dimensions", f"is {task.dimensions}; {self.info.id} has {self.dimensions}.")
        prefix = self._prefix(task)
        overflow = task.overflow or self.options.embedding_overflow
        sequences = gathered(
            (self._sequence(item, f"input[{i}]", prefix, overflow) for i, item in enumerate(task.inputs)),
            "input",
        )
        tokens = sum(len(sequence.tokens) for sequence in sequences)

        def answer(vectors: Floats) -> Event:
            if task.dimensions is not None and task.dimensions < vectors.shape[1]:
                vectors = unit(vectors[:, : task.dimensions])
            return Embedded(np.ascontiguousarray(vectors, "<f4").tobytes(), vectors.shape[1], tokens)

        return EncodingJob(id, Accepted(tokens), sequences, answer)

    def _prefix(self, task: Embed) -> str:
        """The text in front of each input: the prompt of this name in the folder's list, or the instruction itself."""
        if task.instruction is not None:
            return self.prompts.get(task.instruction, task.instruction)
        named = (self._by_purpose[each] for each in task.purposes if each in self._by_purpose)
        return next(named, self._default_prompt)

    def _sequence(
        self, item: str | tuple[int, ...] | Conversation, param: str, prefix: str, overflow: str
    ) -> EncoderInput:
        """The tokens of one input, cut to the model's limit or refused if it is longer, as `overflow` says."""
        if isinstance(item, Conversation):  # which is never cut
            if self.conversations is None:
                text = f"{self.info.id} embeds text only; send strings as input."
                raise ServerError("unsupported", text, item.field or "messages")
            return self.conversations.sequence(item.messages, item.field, continues=item.continues)
        if isinstance(item, str):
            if not item:
                raise refused(param, "is empty; leave it out or send text.")
            try:
                sequence = self._encoded(prefix, item, truncating=overflow == "truncate")
            except TooLong as error:
                raise self.too_long(f"{param} has {error.least} tokens or more", param) from None
        else:
            if overflow == "error" and len(item) > self.tokenizer.limit:
                raise self.too_long(f"{param} has {len(item)} tokens", param)
            sequence = self.tokenizer.checked(item, param)
        length, limit = len(sequence.tokens), self.tokenizer.limit
        if length > limit and overflow == "error":
            raise self.too_long(f"{param} has {length} tokens", param)
        # The last token (end of sequence or separator) stays, because `lasttoken` pooling reads its state.
        return (
            EncoderInput((*sequence.tokens[: limit - 1], sequence.tokens[-1])) if length > limit else sequence
        )

    def _encoded(self, prefix: str, item: str, *, truncating: bool) -> EncoderInput:
        if self._messages is None:
            return self.tokenizer.encode(prefix + item, truncating=truncating)
        frame = self._messages.frame(("system", "user") if prefix else ("user",))
        texts = frame.sorted(*((prefix,) if prefix else ()), item)
        return EncoderInput(self.tokenizer.framed(frame.pieces, texts, truncating=truncating)[0])


def refuse_unknown(name: str, architecture: str) -> None:
    """Raises `ServerError("load_failed")` for an architecture that cannot be computed here, with the reason."""
    if (reason := NOT_COMPUTED.get(architecture)) is not None:
        raise _not_computed(name, reason)


open_preparer = EmbeddingPreparer


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> EncodingEngine:
    assert isinstance(preparer, EmbeddingPreparer)
    refuse_unreadable(preparer.info, preparer.folder)
    preparer.spec = spec  # which has the pool's share by now
    encodes = is_encoder(preparer.config)
    forward = _encoder(preparer) if encodes else _language_model(preparer, progress)
    vector = forward([EncoderInput((preparer.tokenizer.pad,))])
    if vector.ndim != 2:
        refuse_unknown(spec.info.id, "late interaction")
    preparer.dimensions = int(vector.shape[1])
    preparer.info = msgspec.structs.replace(preparer.info, dimensions=preparer.dimensions)
    return EncodingEngine(forward)


def _encoder(preparer: EmbeddingPreparer) -> Forward:
    """The forward pass of an encoder of mlx-vlm."""
    usual = "cls" if preparer.config["model_type"] == "lfm2" else "mean"
    preparer.pooling = read_pooling(preparer.folder, {}, usual)
    model = preparer.load_encoder()
    pad = preparer.tokenizer.pad

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        tokens, mask, _ = padded(batch, pad)
        states, pooling = model(tokens, attention_mask=mask).last_hidden_state, preparer.pooling
        return floats(pooling.finished(pool(states, mask, pooling.modes)))

    return forward


def _language_model(preparer: EmbeddingPreparer, progress: LoadProgress) -> Forward:
    """The forward pass of a language model whose hidden states are pooled as the folder says, else by the last token,
    or the mean where a token attends to all others."""
    folder, config, pad = preparer.folder, preparer.config, preparer.tokenizer.pad
    both = attends_both_ways(config)
    preparer.pooling = read_pooling(folder, arrays_aside(folder, config), "mean" if both else "lasttoken")
    if "cls" in preparer.pooling.modes and not both:
        raise ServerError(
            "load_failed",
            f"{preparer.info.id} asks for the pooling 'cls', and its first token attends to nothing but itself: name "
            "another one in its 1_Pooling/config.json.",
        )
    reading = body_of(folder, config, trust_remote_code=preparer.options.trust_remote_code)
    model, seen = preparer.load_language_model(progress, reading)
    states_of = hidden_states(preparer.info.id, model, config)

    def pool_texts(batch: Sequence[EncoderInput]) -> mx.array:
        tokens, mask, _ = padded(batch, pad)
        return pool(states_of(tokens, mask.sum(axis=1)), mask, preparer.pooling.modes)

    def pool_alone(sequence: EncoderInput) -> mx.array:
        assert seen is not None
        states = seen.states(sequence)[None]
        return pool(states, mx.ones(states.shape[:2], mx.int32), preparer.pooling.modes)[0]

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        texts = [each for each in batch if each.media is None]
        pooled = pool_texts(texts) if texts else mx.zeros(0)
        if len(texts) < len(batch):
            rows = iter(pooled)
            pooled = mx.stack([next(rows) if each.media is None else pool_alone(each) for each in batch])
        return floats(preparer.pooling.finished(pooled))

    return forward
