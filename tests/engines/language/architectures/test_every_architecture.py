"""Each architecture of mlx-lm runs as docs/engine.md says, and answers as mlx-lm's own `generate_step` does."""

import math
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.probe import Batching, choose_batching
from pippin.engines.language.loading import drafting
from pippin.engines.language.upstream.mends import apply, classes_of, mends
from tests.as_on_a_mac.mac import tie as tie_of_halves
from tests.engines.language.architectures.any_architecture import architectures, write
from tests.engines.language.architectures.table import WITH_PROPOSALS, told
from tests.engines.language.bench import MAC, PLAN, TIE, Bench, Eager, watch
from tests.engines.language.roundings import own_logits

TEXT = tuple((place * 17 + place // 9) % 240 for place in range(120))
PROMPTS = {
    "first": (TEXT[3:64], 14),
    "long": (TEXT[:83], 12),
    # It repeats itself: lookups find what to propose.
    "second": (TEXT[40:60] + TEXT[:9] * 3, 16),
}
LATE = 3  # steps after which the last of them comes


def test_the_table_names_each_architecture_of_the_installed_mlx_lm() -> None:
    assert sorted(told()) == sorted(architectures())


def way_of(batching: Batching) -> str:
    way = "one at a time" if batching.shape is None else "in batches"
    return f"{way}, {WITH_PROPOSALS}" if batching.rewinds else way


class Oracle:
    """mlx-lm's own model, by itself, with its faults mended."""

    def __init__(self, folder: Path) -> None:
        self.model, _ = load_model(folder, get_model_classes=classes_of)
        library, _, name = type(self.model).__module__.replace(".models.", ".").partition(".")
        apply(tuple(each for each in mends(library, name) if each.kind == "fault"), self.model)
        self.said = {
            name: [token for token, _ in generate_step(mx.array(prompt), self.model, max_tokens=count)]
            for name, (prompt, count) in PROMPTS.items()
        }

    def judge(self, name: str, answer: list[int]) -> None:
        """Raises AssertionError where a token is not mlx-lm's, unless the two tie."""
        prompt, count = PROMPTS[name]
        assert len(answer) == count
        if answer == self.said[name]:
            return
        place = next(place for place, token in enumerate(answer) if token != self.said[name][place])
        lead = math.inf
        for logits in own_logits(self.model, prompt, answer[: place + 1]):
            lead = (logits[-1].max() - logits[-1, answer[place]]).item()
            if lead < (TIE if MAC is None else tie_of_halves(logits[-1])):
                return
        raise AssertionError(f"token {place} of {name!r} is behind by {lead}: {answer}, {self.said[name]}")


def answers(
    bench: Bench, names: list[str], predicted: Mapping[str, list[int]] | None = None
) -> dict[str, list[int]]:
    """All but the last at once, and that one some steps later. `predicted` are earlier answers, which are proposed."""
    engine = bench.engine
    accept, found = engine.lifecycle.accept, watch(engine)
    for place, name in enumerate(names):
        for _ in range(LATE if 0 < place == len(names) - 1 else 0):
            engine.step()
        job = bench.job(name, *PROMPTS[name])
        engine.submit(msgspec.structs.replace(job, prediction=tuple((predicted or {}).get(name, ()))))
    while engine.busy:
        engine.step()
    engine.lifecycle.accept = accept  # type: ignore[method-assign]
    return {name: found[name, 0] for name in names}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", architectures())
def test_an_architecture_runs_as_the_table_says_and_answers_as_mlx_lm_does(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    way = told()[architecture]
    if way == "not tried":
        pytest.skip("needs what is not here: see the table")
    folder = write(architecture, tmp_path / architecture)
    oracle = Oracle(folder)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    for name, answer in answers(bench, ["first"]).items():
        oracle.judge(name, answer)
    # The second prompt of a chunk finds what the prefix cache has of the first; attention is in one piece, and in many.
    for chunk, launch_bytes in ((32, None), (7, 0)):
        plan = msgspec.structs.replace(PLAN, prefill_chunk=chunk, launch_bytes=launch_bytes)
        bench.engine = bench.new_engine(plan)
        for _ in range(2):
            for name, answer in answers(bench, [*PROMPTS]).items():
                oracle.judge(name, answer)
    assert way_of(choose_batching(bench.model, bench.options)) == way
    bench.options = ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=3)
    if not way.endswith(WITH_PROPOSALS):
        with pytest.raises(ServerError):
            bench.new_engine(PLAN)
        return
    bench.engine = bench.new_engine(PLAN)
    said: dict[str, list[int]] = {}
    for _ in range(2):  # the second time, what was said is predicted
        said = answers(bench, [*PROMPTS], said)
        for name, answer in said.items():
            oracle.judge(name, answer)
    stats = bench.engine.stats()
    assert stats.draft_tokens >= stats.accepted_tokens > 0
