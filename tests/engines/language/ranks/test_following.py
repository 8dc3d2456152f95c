"""Another rank repeats what rank 0 did: here afterwards, from what rank 0 said, and with all of the model."""

from pathlib import Path

import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.ranks.follower import Follower
from pippin.engines.language.ranks.leader import LeadingEngine
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.steering import Steering
from tests.engines.language.bench import PLAN, Bench, watch
from tests.engines.language.ranks.test_agreement import Said
from tests.engines.tiny_models import tiny_model

PROMPTS = {"short": (5, 4), "long": (90, 9), "twice": (23, 6)}
"""How many tokens each prompt and its answer have."""


@pytest.mark.parametrize("overlaps", [False, True], ids=["CPU", "GPU"])
def test_a_follower_ends_every_answer_where_rank_0_has_ended_it(tmp_path: Path, overlaps: bool) -> None:
    plan = msgspec.structs.replace(PLAN, overlaps=overlaps, writes_in_place=not overlaps)
    bench = Bench(tiny_model("llama", tmp_path / "llama"), ModelOptions())

    def build(steering: Steering) -> LanguageEngine:
        return build_engine(Asked(bench.model, bench.tokenizer, ModelOptions(), plan), steering)

    said = Said()
    leader = LeadingEngine(said, build)
    drawn = watch(leader.engine)
    for again in ("", " again"):  # whose prompts are known then
        for name, (length, tokens) in PROMPTS.items():
            prompt = tuple((7 * place + length) % 250 for place in range(length))
            job = bench.job(name + again, prompt, tokens, n=2 if name == "twice" else 1)
            leader.submit(job)
        while leader.busy:
            leader.step()
    stats = leader.stats()
    leader.close()

    follower = Follower(Said(*said.told), build)
    repeated = watch(follower.engine)
    follower.run()
    assert repeated == drawn
    assert {len(tokens) for tokens in drawn.values()} == {4, 9, 6}
    assert follower.engine.stats().completion_tokens == stats.completion_tokens > 0
