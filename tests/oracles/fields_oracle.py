"""Changes each field of tiny configurations, or takes it away, one at a time, and writes what transformers then answers
with.

    python tests/oracles/fields_oracle.py FOLDER [NAME ...]

FOLDER/NAME is a checkpoint that text_oracle.py has written. It gets `fields.npz`: for each change that fits its weights
and changes the answers, and for each field that can be missing, under its number in `fields.json`, the logits [tokens,
vocabulary] of the oracle's prompt.
`fields.json` has the changed configurations. Needs torch and transformers.
"""

import copy
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

Json = dict[str, Any]

# What all configurations have, and what has oracles of its own.
LEFT_OUT = {*PreTrainedConfig().to_dict(), "tie_word_embeddings", "rope_type", "dtype", "use_cache"}
WORDS = (
    "silu",
    "gelu",
    "relu",
    "relu2",
    "gelu_pytorch_tanh",
    "tanh",
    "sigmoid",
    "softmax",
    "greedy",
    "noaux_tc",
)
WORDS += ("group_limited_greedy", "sqrtsoftplus", "linear_attention", "full_attention", "sliding_attention")
PARTS = ("vision_config", "audio_config")
LARGEST = 4_000_000  # parameters: a size with which a field multiplies it is none that fits
SEEN = 1e-3  # of the logits' standard deviation


def others(name: str, value: Any) -> Iterator[Any]:
    """Other values of a field, of which the first that fits is taken."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value - 1, value + 1, value // 2, value * 2, 1)
        case float():
            yield from (value * 0.6 + 0.1, value * 3)
        case str():
            yield from (each for each in WORDS if each != value)
        case list() if value:
            yield from (value[1:] + value[:1], value[::-1])
            if all(isinstance(each, float) for each in value):
                yield [0.7 * each + 0.1 for each in value]
            yield from ([value[0]] * len(value), [value[-1]] * len(value))
        case None:
            yield from (1.3, 0.4, 2, 9, True)


def changes(config: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Iterator[Json]]]:
    """Each field by its path, and the configurations with it changed."""
    table = config
    for name in path:
        table = table[name]
    for name, value in table.items():
        if name in (*LEFT_OUT, *PARTS):
            continue
        if isinstance(value, dict) and value:
            yield from changes(config, (*path, name))
        else:
            yield (*path, name), (changed(config, (*path, name), other) for other in others(name, value))


def changed(config: Json, path: tuple[str, ...], *value: Any) -> Json:
    """The configuration with another value of a field, or without it."""
    found = copy.deepcopy(config)
    table = found
    for name in path[:-1]:
        table = table[name]
    table.pop(path[-1])
    table |= dict.fromkeys(path[-1:], *value) if value else {}
    return found


def answered(config: Json, state: dict[str, torch.Tensor], prompt: torch.Tensor) -> np.ndarray | None:
    """The logits with these weights; None where they do not fit the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            read = AutoConfig.from_pretrained(folder)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(read)
            if sum(each.numel() for each in model.parameters()) > LARGEST:
                return None
            shapes = {name: each.shape for name, each in model.state_dict().items()}
            if shapes != {name: each.shape for name, each in state.items()}:
                return None
            model = AutoModelForCausalLM.from_config(read, dtype=torch.float32, attn_implementation="eager")
            model.load_state_dict(state)
            with torch.no_grad():
                found = model.eval()(prompt, use_cache=False).logits[0].numpy()
        except Exception:
            return None
    return found if np.isfinite(found).all() else None


def write(folder: Path) -> None:
    oracle = np.load(folder / "oracle.npz")
    prompt, logits = torch.tensor(oracle["prompt"])[None], oracle["logits"]
    state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    config = AutoConfig.from_pretrained(folder).to_dict()
    config = json.loads(json.dumps(config, default=str))
    plain = answered(config, state, prompt)
    assert plain is not None
    assert np.abs(plain - logits).max() < 1e-5 * logits.std()
    found, kept = [], []
    for path, configs in changes(config):
        for each in itertools.islice(configs, 12):
            own = answered(each, state, prompt)
            if own is not None and np.abs(own - logits).max() > SEEN * logits.std():
                found.append({"path": path, "config": each})
                kept.append(own)
                break
        without = changed(config, path)
        if (own := answered(without, state, prompt)) is not None:
            found.append({"path": path, "config": without})
            kept.append(own)
    (folder / "fields.json").write_text(json.dumps(found))
    np.savez(folder / "fields.npz", *kept)


def main(root: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or sorted(path.parent.name for path in root.glob("*/oracle.npz")):
        if not (root / name / "fields.json").exists():
            try:
                write(root / name)
                print("wrote", name, flush=True)
            except Exception as error:
                print("failed", name, repr(error)[:300], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
