"""Writes tiny random Whispers as transformers saves them, and what it makes of a recording.

    python tests/oracles/sound_oracle.py FOLDER

Each of `CHECKPOINTS` gets a folder with `oracle.npz` beside its files: `samples` at 16 kHz, `features` [3000, bands],
`tokens`, and `logits` [tokens, vocabulary] in float32. Needs torch and transformers.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from text_oracle import spread
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

CHECKPOINTS = {
    "whisper": {},
    "whisper-large": {"num_mel_bins": 128, "vocab_size": 51866},
    "whisper-english": {"vocab_size": 51864},
    "whisper-deep": {"encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 4},
    "whisper-narrow": {"encoder_ffn_dim": 48},
    "whisper-relu": {"activation_function": "relu"},
    "whisper-scaled": {"scale_embedding": True},
}
COMMON = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}


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


def main(root: Path) -> None:
    torch.set_num_threads(1)
    for name, settings in CHECKPOINTS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        write(settings, root / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
