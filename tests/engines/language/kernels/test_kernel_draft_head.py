"""EAGLE-3 heads beside a model on the kernels say what mlx-vlm's modules say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters import load_drafter

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.language.loading import drafting
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.step.engine import LanguageEngine
from tests.engines.language.bench import (
    PLAN,
    Bench,
    Eager,
    follower_of,
    run_all,
)
from tests.engines.language.drafting import begin
from tests.engines.language.tiny_heads import eagle3_head, eagle3_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

ON_KERNELS = msgspec.structs.replace(PLAN, kernels=True)
SORTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "residual normed": {"norm_before_residual": True},
    "states normed": {"norm_before_fc": True},
    "two layers": {"num_hidden_layers": 2},
    "biased": {"attention_bias": True},
    "all words": {"draft_vocab_size": 320},
    "8 bits": {"bits": 8},
    "4 bits": {"bits": 4},
}
PROMPTS = {f"r{place}": ((*range(5 + place, 25 + 7 * place), place), 20 + 3 * place) for place in range(4)}


class KernelBench(Bench):
    def new_engine(self, plan: Any) -> LanguageEngine:
        return build_engine(Asked(self.model, self.tokenizer, self.options, plan, self.folder, 2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of heads by their sort, and of the model that they are for."""
    root = tmp_path_factory.mktemp("heads")
    eagle3_model(root / "model")

    def folder(sort: str = "plain") -> Path:
        path = root / sort.replace(" ", "-")
        if not path.exists():
            changes = dict(SORTS[sort])
            bits, words = changes.pop("bits", None), changes.pop("draft_vocab_size", None)
            whole = {key: changes.pop(key) for key in list(changes) if key.startswith("norm_before")}
            if words is not None:
                whole["draft_vocab_size"] = words
            eagle3_head(path, whole=whole, **changes)
            if bits is not None:
                quantise(path, bits)
        return path

    return folder


def quantise(folder: Path, bits: int) -> None:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    packed = {}
    for name, array in weights.items():
        if array.ndim < 2 or not name.endswith("weight"):
            packed[name] = array
            continue
        stem = name.removesuffix("weight")
        packed[name], packed[f"{stem}scales"], packed[f"{stem}biases"] = mx.quantize(array, 32, bits)
    mx.save_safetensors(str(folder / "model.safetensors"), packed, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization": {"group_size": 32, "bits": bits}})
    )


def options(head: Path, **changes: Any) -> ModelOptions:
    return ModelOptions(
        **{"cache_block_tokens": 8, "num_draft_tokens": 3, "draft_model_path": str(head), **changes}
    )


@pytest.fixture
def bench(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    monkeypatch.setattr(drafting, "Pace", Eager)

    def opened(sort: str = "plain", **changes: Any) -> Bench:
        head = made(sort)
        return KernelBench(head.parent / "model", options(head, **changes), ON_KERNELS)

    return opened


def heads_of(bench: Bench) -> Any:
    return follower_of(bench.engine)


def plain_head(bench: Bench, folder: Path) -> nn.Module:
    """mlx-vlm's module with float32 weights, on the model's own embeddings."""
    inner, _ = load_drafter(str(folder), "eagle3")
    if "quantization" in json.loads((folder / "config.json").read_text()):
        widen(inner)
    inner.embed_tokens = bench.model.embed
    return inner


def widen(module: Any) -> None:
    for _, each in module.named_modules():
        if isinstance(each, nn.QuantizedLinear):
            each.scales, each.biases = each.scales.astype(mx.float32), each.biases.astype(mx.float32)


@pytest.mark.parametrize(("sort", "sequences"), [("plain", 1), *((sort, 4) for sort in SORTS)])
def test_it_proposes_what_mlx_vlm_drafts(
    bench: Callable[..., Bench], made: Callable[..., Path], sort: str, sequences: int
) -> None:
    """After each step, of sequences of different lengths, each from the states that the model alone gives."""
    subject = bench(sort)
    heads, inner, engine = heads_of(subject), plain_head(subject, made(sort)), subject.engine
    for name, (prompt, count) in list(PROMPTS.items())[:sequences]:
        engine.submit(subject.job(name, prompt, count))
    compared = 0
    while engine.busy and compared < 4 * sequences:
        engine.step()
        running = [each for each in engine.batch.running if heads.is_ready(each.sequence)]
        if len(running) < sequences:
            continue
        for each, (found, *_) in zip(
            running, heads.propose([(each.sequence, 3) for each in running]), strict=True
        ):
            expected = drafted(subject, heads, inner, each.sequence.tokens)
            assert found == expected
            compared += 1
    assert compared >= 4 * sequences


def drafted(bench: Bench, heads: Any, inner: Any, tokens: list[int]) -> list[int]:
    """What mlx-vlm's module says after these tokens."""
    bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
    hidden = heads.states.take()
    begin(inner)
    inner._seed_token = inner._seed_hidden = None
    inner._left_padding = None
    inner.embed_tokens = bench.model.embed
    own = inner._forward_tokens(mx.array([tokens[1:]]), hidden, mx.int32)[:, -1:]
    found: list[int] = []
    for _ in range(3):
        likeliest = inner._draft_to_target(mx.argmax(inner._logits(own), axis=-1), mx.int32)
        found.append(int(likeliest.item()))
        own = inner._forward_tokens(likeliest, own, mx.int32)
    return found


@pytest.mark.parametrize("sort", ["plain", "two layers", "4 bits"])
def test_it_gives_the_models_own_answer(bench: Callable[..., Bench], sort: str) -> None:
    subject = bench(sort)
    for _ in range(2):  # the second time, most of the prompts are known
        answers, _ = run_all(subject, PROMPTS)
        for name, (prompt, count) in PROMPTS.items():
            assert len(answers[name, 0]) == count
            subject.judge(prompt, answers[name, 0])
    assert subject.engine.stats().draft_tokens > 0


def test_its_share_of_the_time_is_told(bench: Callable[..., Bench]) -> None:
    subject = bench()
    assert subject.engine.stats().draft_seconds == 0
    run_all(subject, PROMPTS)
    assert 0 < subject.engine.stats().draft_seconds < 60


def test_the_memory_of_a_head_is_counted_but_not_the_embeddings_of_the_model(
    bench: Callable[..., Bench], made: Callable[..., Path]
) -> None:
    arrays: Any = mx.load(str(made() / "model.safetensors"))
    own = sum(array.nbytes for name, array in arrays.items() if array.ndim > 1 and "embed_tokens" not in name)
    counted = heads_of(bench()).head.own_bytes
    assert own <= counted < 1.3 * own  # rows are whole blocks


@pytest.mark.parametrize("kernels", [True, False])
def test_a_head_that_names_tokens_beyond_the_vocabulary_is_refused(
    made: Callable[..., Path], tmp_path: Path, kernels: bool
) -> None:
    head = eagle3_head(tmp_path / "head")
    weights: Any = mx.load(str(head / "model.safetensors"))
    weights["d2t"] = weights["d2t"] + 300
    mx.save_safetensors(str(head / "model.safetensors"), weights)
    plan = ON_KERNELS if kernels else PLAN
    with pytest.raises(ServerError, match="token that the vocabulary does not have"):
        KernelBench(made().parent / "model", options(head), plan)
