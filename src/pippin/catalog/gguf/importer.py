"""Imports a GGUF file as an MLX model folder: everything is checked before anything is written, and writes are
atomic."""

import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pippin.catalog.download import Progress
from pippin.catalog.gguf.architectures import ROPE_FACTORS, Architecture, Config, architecture, llama3_scaling
from pippin.catalog.gguf.reader import GgufFile, Metadata, Tensor, malformed
from pippin.catalog.gguf.tokenizer import TokenizerFiles, convert_tokenizer
from pippin.catalog.gguf.weights import (
    GROUP,
    QUANTIZED_BITS,
    STORED,
    WIDTH,
    DenseType,
    StoredArray,
    dense,
    floats,
    lossless,
    quantized,
    write_safetensors,
)
from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MOST_ARRAYS: Final = 3  # of a tensor: `weight`, `scales` and `biases`


def import_gguf(
    path: Path,
    destination_root: Path,
    name: str,
    progress: Progress | None = None,
    *,
    dense_type: DenseType | None = None,
) -> ModelInfo:
    """Write the model in the GGUF file `path` to the folder `destination_root / name`.

    K-quants are rounded to `dense_type`: by default bfloat16 for Gemma, whose activations overflow float16, else
    float16. Holds one tensor in memory at a time. Raises `ServerError`, leaving nothing behind.
    """
    if NAME.fullmatch(name) is None:
        raise ServerError(
            "invalid_request",
            "A model's name begins with a letter or digit and holds only letters, digits, '.', '_' and '-'.",
            "name",
        )
    folder = destination_root / name
    if folder.exists():
        raise ServerError("conflict", f"A model called {name} is there already. Give another name.", "name")
    with GgufFile(path) as file:
        conversion = Conversion(file, dense_type)
        destination_root.mkdir(parents=True, exist_ok=True)
        conversion.check_room(destination_root)
        partial = Path(tempfile.mkdtemp(prefix=".import-", dir=destination_root))
        try:
            conversion.write(partial, progress or (lambda done, total, what: None))
            partial.chmod(0o755)
            partial.rename(folder)
        except OSError as error:
            raise ServerError(
                "invalid_request", f"Cannot write the model {name}: {error.strerror}."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return read_info(folder)


class Conversion:
    """A GGUF file that was found fit for import: the plan for its weights, and all other documents."""

    def __init__(self, file: GgufFile, dense_type: DenseType | None) -> None:
        self._file = file
        self._metadata = Metadata(file.path.name, file.metadata)
        self._architecture: Architecture = architecture(self._metadata)
        self._config: Config = self._architecture.config(self._metadata)
        kind = self._config["model_type"]
        self._dense: DenseType = dense_type or ("bfloat16" if kind == "gemma3_text" else "float16")
        self._tokenizer: TokenizerFiles = convert_tokenizer(self._metadata)
        self._plan = self._assign()
        self._complete_config()

    def check_room(self, root: Path) -> None:
        """Raise `ServerError` if the disk cannot hold the model. The estimate exceeds what will be written."""
        needed = 16 * 1024**2 + sum(
            tensor.size * 10 // 8
            if tensor.type in QUANTIZED_BITS
            else max(tensor.size, math.prod(tensor.shape) * WIDTH[STORED[self._dense]])
            for tensor in self._plan.values()
        )
        free = shutil.disk_usage(root).free
        if needed > free:
            message = f"The model needs {needed / 1e9:.1f} GB of disk in {root}, where {free / 1e9:.1f} GB are free."
            raise ServerError("too_large", message)

    def write(self, folder: Path, progress: Progress) -> None:
        most = MOST_ARRAYS * len(self._plan)
        write_safetensors(folder / "model.safetensors", self._arrays(progress), most)
        self._tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
        for name, document in (
            ("config.json", self._config),
            ("tokenizer_config.json", self._tokenizer.config),
            ("generation_config.json", self._tokenizer.generation),
        ):
            (folder / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")

    def _arrays(self, progress: Progress) -> Iterator[tuple[str, StoredArray]]:
        total = sum(tensor.size for tensor in self._plan.values())
        done = 0
        for (module, leaf), tensor in self._plan.items():
            for suffix, array in self._convert(module, leaf, tensor).items():
                yield f"{module}.{suffix}", array
            done += tensor.size
            progress(done, total, module)

    def _assign(self) -> dict[tuple[str, str], Tensor]:
        """Map each array to the tensor that fills it, in file order."""
        plan: dict[tuple[str, str], Tensor] = {}
        for name, tensor in self._file.tensors.items():
            if name == ROPE_FACTORS:
                continue
            target = self._architecture.target(name, self._config["num_hidden_layers"])
            if target is None:
                raise self._metadata.unsupported(
                    f"it holds the tensor {name}, which a plain {self._metadata.architecture} model does not have"
                )
            plan[target] = tensor
        missing = sorted(self._architecture.modules(self._config) - {module for module, _ in plan})
        if missing:
            raise malformed(
                self._file.path, f"it lacks the weights of {missing[0]} and {len(missing) - 1} others"
            )
        self._check_shapes(plan)
        return plan

    def _check_shapes(self, plan: dict[tuple[str, str], Tensor]) -> None:
        config = self._config
        head, hidden = config["head_dim"], config["hidden_size"]
        queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
        words = plan["model.embed_tokens", "weight"].shape[0]
        wide = config["intermediate_size"]
        shapes = {
            "embed_tokens": (words, hidden),
            "lm_head": (words, hidden),
            "q_proj": (queries, hidden),
            "k_proj": (keys, hidden),
            "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
            "gate_proj": (wide, hidden),
            "up_proj": (wide, hidden),
            "down_proj": (hidden, wide),
            "q_norm": (head,),
            "k_norm": (head,),
        }
        for (module, leaf), tensor in plan.items():
            shape = shapes.get(module.rpartition(".")[2], (hidden,))
            expected = shape if leaf == "weight" else shape[:1]
            if tensor.shape != expected:
                reason = (
                    f"the tensor {tensor.name} has the shape {list(tensor.shape)} instead of {list(expected)}"
                )
                raise malformed(self._file.path, reason)
        if self._tokenizer.tokens > words:
            raise malformed(
                self._file.path, f"it has {self._tokenizer.tokens} tokens, but embeds only {words}"
            )

    def _complete_config(self) -> None:
        """Add what the tensors and the tokenizer reveal about the model."""
        config = self._config
        config["vocab_size"] = self._plan["model.embed_tokens", "weight"].shape[0]
        config["tie_word_embeddings"] = ("lm_head", "weight") not in self._plan
        if self._architecture.model_type == "llama":
            biased = {module.rpartition(".")[2] for module, leaf in self._plan if leaf == "bias"}
            if biased and biased != {"q_proj", "k_proj", "v_proj", "o_proj"}:
                raise self._metadata.unsupported(f"only {', '.join(sorted(biased))} have a bias")
            config["attention_bias"] = bool(biased)
        if ROPE_FACTORS in self._file.tensors:
            tensor = self._file.tensors[ROPE_FACTORS]
            factors = floats(self._file.read(tensor), tensor.type, tensor.shape).reshape(-1)
            scaling = llama3_scaling(factors, config["rope_theta"])
            if scaling is None or 2 * factors.size != config["head_dim"]:
                raise self._metadata.unsupported("its table of rotary factors is not made as Llama 3's is")
            config["rope_scaling"] = scaling
        config |= self._tokenizer.generation
        config["torch_dtype"] = self._dense
        quantization = self._quantization()
        if quantization is not None:
            config["quantization"] = quantization
            config["quantization_config"] = quantization

    def _quantization(self) -> dict[str, Any] | None:
        """The `quantization` entry that mlx-lm reads: the most common form, and by name the modules that differ."""
        bits = {
            module: QUANTIZED_BITS[tensor.type]
            for (module, _), tensor in self._plan.items()
            if tensor.type in QUANTIZED_BITS
        }
        if not bits:
            return None
        common = Counter(bits.values()).most_common(1)[0][0]
        different = {
            module: {"group_size": GROUP, "bits": count} for module, count in bits.items() if count != common
        }
        return {"group_size": GROUP, "bits": common, "mode": "affine", **different}

    def _convert(self, module: str, leaf: str, tensor: Tensor) -> dict[str, StoredArray]:
        raw = self._file.read(tensor)
        # Two things that llama.cpp's converter did to tensors: it added one to Gemma's norms, and mixed Llama's rows.
        kind = self._architecture.model_type
        if kind == "gemma3_text" and module.endswith("norm"):
            values = floats(raw, tensor.type, tensor.shape)
            return {leaf: lossless(values, self._dense, stored_plus_one=True)}
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        if kind == "llama" and (of := heads.get(module.rpartition(".")[2])) is not None:
            raw = _uninterleaved(raw, tensor.shape, self._config[of])
        if tensor.type in QUANTIZED_BITS and leaf == "weight" and len(tensor.shape) == 2:
            return quantized(raw, tensor.type, tensor.shape)
        return {leaf: dense(raw, tensor.type, tensor.shape, self._dense)}


def _uninterleaved(raw: NDArray[np.uint8], shape: tuple[int, ...], heads: int) -> NDArray[np.uint8]:
    """The rows in the order of transformers and MLX. A row's bytes move as a whole, packed or not.

    Undoes `permute` in llama.cpp's convert_hf_to_gguf.py: there, row 2i + j of a head was row j * half + i.
    """
    if len(shape) == 1:  # a bias: its values are the rows
        raw = raw.reshape(shape[0], -1)
    half = shape[0] // heads // 2
    order = np.arange(shape[0]).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)
    ordered: NDArray[np.uint8] = np.ascontiguousarray(raw[order])
    return ordered.reshape(1, -1) if len(shape) == 1 else ordered
