"""Small random models of each architecture, computed by mlx-lm from the import and by transformers from the file."""

import json
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

from pippin.catalog.gguf import import_gguf
from pippin.catalog.gguf.architectures import llama3_factors, llama3_scaling
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.catalog.gguf_files import HEAD, TOKENS, GgufFileBuilder
from tests.catalog.gguf_golden import ROOT, mlx_forward

IDS = [5, 9, 40, 77, 3, 120, 200, 17, 5, 9, 40, 33, 64, 128, 250, 2, 8, 91, 14, 66]
HEADS = {"qwen3": 128, "gemma3": 256}  # transformers takes these for granted and does not read the file's
Q = gguf.GGMLQuantizationType


def random_model(architecture: str) -> GgufFileBuilder:
    builder = GgufFileBuilder(architecture, tied=architecture != "llama", head=HEADS.get(architecture, HEAD))
    kinds = {
        "ffn_up": Q.Q4_0,
        "ffn_gate": Q.Q4_1,
        "ffn_down": Q.Q8_0,
        "attn_q.weight": Q.Q8_0,
        "attn_v.weight": Q.F16,
    }
    for name in builder.tensors:
        for part, kind in kinds.items():
            if part in name:
                builder.types[name] = kind
    return builder


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_an_import_computes_what_transformers_does(
    tmp_path: Path, architecture: str, oracle_python: Path
) -> None:
    builder = random_model(architecture)
    source = builder.write(tmp_path / "model.gguf")
    import_gguf(source, tmp_path / "models", "m", dense_type="float32")
    vocabulary = len(builder.tensors["token_embd.weight"])
    sequence = {"ids": IDS, "greedy": [0], "top_ids": list(range(vocabulary))}
    found = mlx_forward(tmp_path / "models" / "m", [sequence])[0]["top_logits"]
    command = [oracle_python, ROOT / "tests/oracles/gguf_logits.py", source, ",".join(map(str, IDS))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert np.abs(np.subtract(found, json.loads(ran.stdout)[-1])).max() < 2e-5


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_mlx_lm_makes_of_a_found_scaling_the_factors_that_it_was_found_from(factor: float) -> None:
    from mlx_lm.models.rope_utils import initialize_rope

    factors = llama3_factors(HEAD, 500000.0, factor)
    scaling = llama3_scaling(factors.astype(np.float32), 500000.0)
    rope = initialize_rope(HEAD, 500000.0, False, scaling)
    unscaled = 500000.0 ** (np.arange(0, HEAD, 2) / HEAD)
    assert np.allclose(np.array(rope._freqs) / unscaled, factors, rtol=1e-4)


def test_marks_that_a_file_has_as_ordinary_text_are_special_and_end_turns(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    builder.metadata["tokenizer.ggml.tokens"] = ["<|endoftext|>", "<|im_end|>", *TOKENS[2:]]
    builder.metadata["tokenizer.ggml.token_type"] = [3, *[1] * (len(TOKENS) - 1)]
    import_gguf(builder.write(tmp_path / "m.gguf"), tmp_path / "models", "m")
    tokenizer = Tokenizer.load(tmp_path / "models" / "m")
    assert tokenizer.encode("<|im_end|>") == [1]
    assert tokenizer.eos == {0, 1}
    assert tokenizer.detokenizer().add(1) == ""
