"""Writes tiny random Whispers as transformers saves them, and what it makes of a recording.

    python tests/oracles/sound_oracle.py FOLDER

Each of `CHECKPOINTS` gets a folder with `oracle.npz` beside its files: `samples` at 16 kHz, `features` [3000, bands],
`tokens`, and `logits` [tokens, vocabulary] in float32. FOLDER/heard is one more, of which FOLDER/heard/NAME.json has
what its `generate` makes of `recording()` for each of `HEARD`: the `segments`. Needs torch and transformers.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from text_oracle import spread
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

CHECKPOINTS = {
    "whisper": {},
    "whisper-large": {"num_mel_bins": 128, "vocab_size": 51866},
    "whisper-english": {"vocab_size": 51864},
    "whisper-deep": {"encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 4},
    "whisper-narrow": {"encoder_ffn_dim": 48},
    "whisper-relu": {"activation_function": "relu"},
    "whisper-scaled": {"scale_embedding": True},
}
LANGUAGES = ("en", "zh", "de", "es", "ru", "ko", "fr", "ja")
"""The first of Whisper's."""

PUBLISHED = {
    "decoder_start_token_id": 50258,
    "eos_token_id": 50257,
    "pad_token_id": 50257,
    "begin_suppress_tokens": [220, 50257],
    "suppress_tokens": [1, 2, 7, 8, 9, 10, 14, 25, *range(50258, 50363)],
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": 50259 + place for place, code in enumerate(LANGUAGES)},
    "task_to_id": {"transcribe": 50359, "translate": 50358},
    "no_timestamps_token_id": 50363,
    "prev_sot_token_id": 50361,
    "max_initial_timestamp_index": 50,
    "condition_on_prev_tokens": False,
}
"""The fields of generation_config.json that Whisper's have."""

PROMPT = ("many words", [50361, 867, 2283])
"""A prompt and its tokens."""

# Half of the windows of the recording are below these.
SILENT = {"no_speech_threshold": 0.0, "logprob_threshold": -0.1}
SOUNDING = {"no_speech_threshold": 1.0, "logprob_threshold": -0.1}
# Each window is below the first and above the second.
UNLIKELY, LIKELY = {"logprob_threshold": -1.0}, {"logprob_threshold": -9.0}

HEARD: dict[str, dict[str, Any]] = {
    "plain": {},
    "language": {"asked": {"language": "de"}},
    "translated": {"asked": {"language": "fr", "task": "translate"}},
    "named": {"said": {"language": "<|ja|>"}},
    "forced": {"said": {"forced_decoder_ids": [[1, 50263], [2, 50359]]}, "as_said": True},
    "few-languages": {"said": {"lang_to_id": {"<|de|>": 50261, "<|fr|>": 50265}}},
    "much-suppressed": {"said": {"suppress_tokens": [*range(0, 30000, 2), *range(50258, 50363)]}},
    "begin-suppressed": {"said": {"begin_suppress_tokens": [*range(50364, 50400), 50257]}},
    "early": {"said": {"max_initial_timestamp_index": 1}},
    "any-time": {"said": {"max_initial_timestamp_index": None}},
    "penalised": {"said": {"repetition_penalty": 1.5}},
    "forbidden": {"said": {"bad_words_ids": [[300], [50405]]}},
    "continued": {"said": {"condition_on_prev_tokens": True}},
    # Without them, transformers gives each window the prompt; OpenAI's code the first alone.
    "prompted": {"said": {"condition_on_prev_tokens": True}, "prompted": True},
    "silent": {"said": SILENT, "asked": SILENT},
    "never-silent": {"said": SOUNDING, "asked": SOUNDING},
    # The second window of the two repeats itself more.
    "repetitive": {"said": {"compression_ratio_threshold": 0.85, **LIKELY}, "asked": LIKELY, "hotter": True},
    "unlikely": {"said": UNLIKELY, "asked": UNLIKELY, "hotter": True},
    "likely-enough": {"said": LIKELY, "asked": LIKELY, "hotter": True},
}
"""Changes of PUBLISHED and arguments of `generate`; `hotter` tries HOTTER where decoding fails."""

HOTTER = (0.0, 1e-4, 2e-4)
"""Temperatures at which nothing is left to chance."""

LOUD = 3.0
"""What logits are multiplied with, so that words are as likely as times."""

MOST_TOKENS = 16

COMMON = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
SHORT = {"encoder_layers": 1, "max_target_positions": 40}


@torch.no_grad()
def write(settings: dict[str, object], folder: Path) -> None:
    torch.manual_seed(5)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**COMMON, **settings}))
    positions = model.model.encoder.embed_positions.weight.clone()
    spread(model)
    model.model.encoder.embed_positions.weight.copy_(positions)
    model.save_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    bands = model.config.num_mel_bins
    seconds = np.arange(3 * 16000) / 16000
    samples = (0.3 * np.sin(2 * np.pi * (200 + 400 * seconds) * seconds)).astype(np.float32)
    features = WhisperFeatureExtractor(feature_size=bands)(samples, sampling_rate=16000, return_tensors="pt")
    tokens = [50257, 50258, 50359, *range(300, 320)]
    found = model(features.input_features, decoder_input_ids=torch.tensor([tokens])).logits[0]
    np.savez(
        folder / "oracle.npz",
        samples=samples,
        features=features.input_features[0].T.numpy(),
        tokens=tokens,
        logits=found.numpy(),
    )


def recording() -> np.ndarray:
    """45 seconds of a tone that rises in each fifteen."""
    seconds = np.arange(45 * 16000) / 16000
    return (0.3 * np.sin(2 * np.pi * (200 + 40 * (seconds % 15)) * seconds)).astype(np.float32)


@torch.no_grad()
def write_heard(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**COMMON, **SHORT}))
    positions = model.model.encoder.embed_positions.weight.clone()
    spread(model)
    model.model.encoder.embed_positions.weight.copy_(positions)
    model.model.decoder.layer_norm.weight.mul_(LOUD)
    model.save_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    sound = WhisperFeatureExtractor()(
        recording(),
        sampling_rate=16000,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    judge = WhisperForConditionalGeneration._need_fallback
    for name, asked in HEARD.items():
        said = {**PUBLISHED, **asked.get("said", {})}
        model.generation_config = GenerationConfig(**said)
        task = {} if asked.get("as_said") else {"task": "transcribe"}
        tried: list[float] = []
        model._need_fallback = lambda *about, tried=tried: tried.append(about[-1]) or judge(model, *about)
        found = model.generate(
            sound.input_features,
            attention_mask=sound.attention_mask,
            return_timestamps=True,
            return_segments=True,
            max_new_tokens=MOST_TOKENS,
            temperature=HOTTER if asked.get("hotter") else 0.0,
            **{**task, **asked.get("asked", {})},
            **({"prompt_ids": torch.tensor(PROMPT[1])} if asked.get("prompted") else {}),
        )
        segments = [
            {"start": float(each["start"]), "end": float(each["end"]), "tokens": each["tokens"].tolist()}
            for each in found["segments"][0]
        ]
        about = {
            "said": said,
            "asked": asked.get("asked", {}),
            "prompt": PROMPT[0] if asked.get("prompted") else None,
            "most_tokens": MOST_TOKENS,
            "temperatures": HOTTER if asked.get("hotter") else 0.0,
            "tried": tried,
        }
        (folder / f"{name}.json").write_text(json.dumps({**about, "segments": segments}))
    np.save(folder / "samples.npy", recording())


def main(root: Path) -> None:
    torch.set_num_threads(1)
    for name, settings in CHECKPOINTS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        write(settings, root / name)
    write_heard(root / "heard")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
