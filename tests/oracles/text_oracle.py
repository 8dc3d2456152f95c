"""Writes tiny random language models as transformers saves them, and what it answers with each.

    python tests/oracles/text_oracle.py FOLDER [NAME ...]

FOLDER/NAME is one of the checkpoints of `text.yaml`, and has `oracle.npz` beside its files: `prompt` [tokens],
`logits` [tokens, vocabulary] in float32, `answer` [ANSWER], the greedy tokens behind the prompt. Those of `ruled` also
have `rules.json`, fields of a generation_config.json, and `ruled.npy`, the answer within them. What transformers
cannot make has `failed.txt`. Needs torch and transformers.
"""

import copy
import dataclasses
import itertools
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

Json = dict[str, Any]

SETTINGS = yaml.safe_load(Path(__file__).with_name("text.yaml").read_text("utf-8"))
CHECKPOINTS = (
    SETTINGS["checkpoints"]
    | {f"{kind}-scaled": SETTINGS["scaling"] for kind in SETTINGS["scaled"]}
    | {f"{kind}-older": {} for kind in SETTINGS["older"]}
)
PROMPT, ANSWER = 41, 20
SPREAD = 0.1


def merged(base: Json, other: Json) -> Json:
    """`other` over `base`, table by table; null takes a field away."""
    found = copy.deepcopy(base)
    for name, value in other.items():
        own = found.get(name)
        found[name] = merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return found


def own_settings(name: str) -> Json:
    """A checkpoint's settings over those of its type."""
    kind = name.partition("-")[0]
    found = CHECKPOINTS.get(kind, {})
    return found if kind == name else merged(found, CHECKPOINTS[name])


def configuration(kind: str, own: Json, common: Json = SETTINGS["common"]) -> Any:
    """The configuration of a type: the settings that all have, if its class knows them, and its own."""
    blank = type(AutoConfig.for_model(kind))
    fields = {each.name for each in dataclasses.fields(blank)} | {*getattr(blank, "attribute_map", {})}
    settings = merged({name: value for name, value in common.items() if name in fields}, own)
    for name, value in settings.items():
        if name.endswith("_config") and "model_type" in value:
            settings[name] = configuration(value["model_type"], value, common).to_dict()
    return AutoConfig.for_model(kind, **present(settings))


def present(settings: Json) -> Json:
    return {
        name: present(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value != "absent" and name != "model_type"
    }


def spread(model: torch.nn.Module) -> None:
    """Random numbers about what each weight begins as, so that no norm, bias or factor is without effect."""
    numbers = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()) + sorted(model.named_buffers()):
            if name not in model.state_dict() or not weight.is_floating_point():
                continue
            noise = torch.randn(weight.shape, generator=numbers)
            weight.copy_(
                SPREAD * noise
                if weight.ndim >= 2 and weight.isfinite().logical_not().any()
                else weight + SPREAD * noise
            )


def write(name: str, folder: Path) -> None:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(
        configuration(name.partition("-")[0], own_settings(name)), dtype=torch.float32
    )
    spread(model)
    model.generation_config = GenerationConfig(**SETTINGS["generation"])
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"<{place}>": place for place in range(250)}, unk_token="<3>"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    if name.endswith("-older"):
        with_older_base(folder / "config.json")
    # What the folder says is compared, not what was in memory.
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompt = [int(token) for token in np.random.default_rng(3).integers(3, 250, PROMPT)]
    tokens = list(prompt)
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        row = logits[-1]
        for _ in range(ANSWER):
            tokens.append(int(row.argmax()))
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    answer = tokens[PROMPT:]
    np.savez(folder / "oracle.npz", prompt=prompt, logits=logits.numpy(), answer=answer)
    if name in SETTINGS["ruled"]:
        rules = rules_against(answer)
        (folder / "rules.json").write_text(json.dumps(rules))
        model.generation_config = GenerationConfig(max_new_tokens=ANSWER, **rules)
        ruled = model.generate(torch.tensor([prompt]), use_cache=False)[0, PROMPT:]
        np.save(folder / "ruled.npy", ruled.numpy())


def with_older_base(path: Path) -> None:
    """Have a configuration tell its base in the older field alone."""
    config = json.loads(path.read_text("utf-8"))
    text = config.get("text_config", config)
    text.pop("rope_parameters", None)
    text["rope_theta"] = 54321.0
    path.write_text(json.dumps(config))


def rules_against(answer: list[int]) -> Json:
    """Fields of a generation_config.json that forbid much of this answer."""
    pairs = [list(pair) for pair in itertools.pairwise(answer)]
    return {"no_repeat_ngram_size": 3, "bad_words_ids": pairs[::3], "sequence_bias": [[pairs[1], -2.5]]}


def main(root: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or list(CHECKPOINTS):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write(name, folder)
            print("wrote", name, flush=True)
        except Exception:
            (folder / "failed.txt").write_text(traceback.format_exc())
            print("failed", name, traceback.format_exc().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
