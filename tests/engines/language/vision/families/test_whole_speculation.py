"""Models that run whole prompts, one request at a time, check proposals too; what is beside their caches goes back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language import loading
from pippin.engines.language.step.decoding import Decoding
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.vision.whole import WholeModel
from tests.engines.language.bench import Eager, speculation_of
from tests.engines.language.schedule_run import Knowing
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_any_family import SHOWN, opened
from tests.engines.language.vision.vision_bench import VisionBench

SPECULATING = (
    *("cohere_compass", "ernie4_5_moe_vl", "falcon_ocr", "fastvlm", "granite4_vision", "granite_vision"),
    *("hunyuan_vl", "jina_vlm", "llava_next", "minicpmo", "minicpmv4_7", "minimax_m3_vl", "phi4mm"),
    *("qwen3_omni_moe", "zaya1_vl"),
)
REFUSED = (
    *("deepseek_v4", "deepseek_v41", "falcon_perception", "florence2", "mllama", "molmo_point"),
    *("nemotron_parse", "paligemma", "unlimited_ocr"),
)
"""Several tokens of an answer see each other, are read apart from single ones, or lie in caches of the model's own."""
QUICK = ("falcon_ocr", "paligemma")
GREEDY, DRAWN = Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9, seed=3)


class Saying(Knowing):
    """Proposes what was said before, with each fifth token wrong."""

    def __init__(self, said: dict[str, list[int]]) -> None:
        super().__init__(None)
        self._answers = {
            name: [(token + (place % 5 == 4)) % 256 for place, token in enumerate(tokens)]
            for name, tokens in said.items()
        }

    def _known(self, sequence: Sequence, most: int) -> list[int]:
        return self._answers[sequence.request.job.id][sequence.generated :][:most]


def cases(families: tuple[str, ...]) -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in families]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(loading, "Pace", Eager)


def check_proposals(bench: VisionBench, sampling: Sampling) -> None:
    """They change no answer, though some of their tokens are wrong, and the request after one that was cancelled amid
    proposals finds nothing of it."""
    asked = [
        bench.job("picture", SHOWN[0], "What?", tokens=30, sampling=sampling),
        bench.job("text", "Only words.", tokens=30, sampling=sampling),
    ]
    plain, _ = bench.run(*asked, engine=bench.new_engine())
    engine = bench.new_engine()
    speculation_of(engine).proposer = Saying({**plain, "cancelled": plain["picture"]})
    speculation_of(engine).always = True
    engine.submit(replace(asked[0], id="cancelled"))
    for _ in range(3):
        engine.step()
    engine.cancel("cancelled")
    assert bench.run(*asked, engine=engine)[0] == plain
    stats = engine.stats()
    tokens = sum(map(len, plain.values()))
    assert tokens / 3 < stats.accepted_tokens < stats.draft_tokens - tokens / 12


@pytest.mark.parametrize("family", cases(SPECULATING))
def test_proposals_change_no_answer(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    assert isinstance(bench.model, WholeModel)
    for sampling in (GREEDY, DRAWN):
        check_proposals(bench, sampling)


@pytest.mark.parametrize("family", cases(REFUSED))
def test_a_model_that_reads_several_tokens_otherwise_refuses_proposals(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    assert type(bench.engine.decoding) is Decoding
    bench.options = msgspec.structs.replace(bench.options, prompt_lookup=True)
    with pytest.raises(ServerError, match="prompt_lookup cannot be used: no trial showed"):
        bench.new_engine()


def test_what_a_step_leaves_on_modules_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that counts its tokens by itself, and answers by the count."""
    bench = VisionBench(write("falcon_ocr", FAMILIES["falcon_ocr"], tmp_path / "falcon_ocr"))
    language = bench.model.inner.language_model
    base = type(language)

    def counting(self: Any, tokens: mx.array, *, cache: Any, inputs_embeds: Any = None, **given: Any) -> Any:
        self.counted = self.counted if cache[0].offset else 0
        found = base.__call__(self, tokens, cache=cache, inputs_embeds=inputs_embeds, **given)
        count = (tokens if inputs_embeds is None else inputs_embeds).shape[1]
        places = self.counted + mx.arange(count - found.logits.shape[1], count)
        self.counted += count
        words = 1 + mx.arange(found.logits.shape[2])
        found.logits = found.logits + 4 * mx.cos(places[:, None] * words)
        return found

    monkeypatch.setattr(language, "__class__", type(base.__name__, (base,), {"__call__": counting}))
    check_proposals(bench, GREEDY)
