"""What ranks tell each other before the first step, and what keeps them apart."""

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import RankBackend, RankSpec
from pippin.engines.device import MemoryShares
from pippin.engines.language.ranks.follower import Astray, Hearing
from pippin.engines.language.ranks.messages import Budget, Close, Hello, Ready, Step, Tokens, encode, software
from pippin.engines.language.ranks.opening import REFUSED, greet, join_group, reconciled
from pippin.engines.refusals import refuse_set

READY = Ready(shares=MemoryShares(sequences=1000, prefixes=70), keeps_prefixes=True)


def test_all_ranks_have_what_the_poorest_can_give() -> None:
    poor = msgspec.structs.replace(READY, shares=MemoryShares(sequences=300, prefixes=100))
    assert reconciled([READY, poor]) == MemoryShares(sequences=300, prefixes=70)


class Said:
    """A link on which the other end has said these payloads."""

    def __init__(self, *payloads: bytes) -> None:
        self._payloads = list(payloads)
        self.told: list[bytes] = []

    def tell(self, payload: bytes) -> None:
        self.told.append(payload)

    def hear(self) -> list[bytes]:
        return [self._payloads.pop(0)]


def test_a_rank_without_memory_beside_its_weights_does_not_begin() -> None:
    with pytest.raises(ServerError, match="Rank 1 has less memory than it needs") as raised:
        reconciled([READY, msgspec.structs.replace(READY, keeps_prefixes=False)])
    assert raised.value.report.kind == "load_failed"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Hello("mlx 3", "abc"), "Rank 1 runs mlx 3, and rank 0 mlx 2: install the same"),
        (Hello("mlx 2", "abd"), "Rank 1 has other files for this model than rank 0"),
    ],
)
def test_ranks_that_differ_do_not_begin(other: Hello, words: str) -> None:
    link = Said(encode(other))
    with pytest.raises(ServerError, match=words) as raised:
        greet(link, RankSpec(rank=0, size=2), Hello("mlx 2", "abc"))
    assert raised.value.report.kind == "load_failed"
    assert link.told == []


def test_ranks_that_are_alike_begin() -> None:
    own = Hello(software(), "abc")
    leader, other = Said(encode(own)), Said(encode(own))
    greet(leader, RankSpec(rank=0, size=2), own)
    greet(other, RankSpec(rank=1, size=2), own)
    assert leader.told == other.told == [encode(own)]


@pytest.mark.skipif(mx.metal.is_available() or mx.cuda.is_available(), reason="it may have what they need")
@pytest.mark.parametrize(("backend", "words"), [("jaccl", "MLX_IBV_DEVICES"), ("nccl", "NVIDIA GPU")])
def test_a_backend_that_is_not_here_is_refused_with_what_it_needs(backend: RankBackend, words: str) -> None:
    with pytest.raises(ServerError, match=words) as raised:
        join_group(RankSpec(rank=0, size=2, backend=backend))
    assert (raised.value.report.kind, raised.value.report.param) == ("load_failed", "rank_backend")


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(draft_model_path="other"),
        ModelOptions(mtp=True),
        ModelOptions(prompt_lookup=True),
        ModelOptions(adapters={"a": "folder"}),
        ModelOptions(cache_dir="/cache"),
        ModelOptions(warm_prompts="file.json"),
        ModelOptions(kv_bits=4),
        ModelOptions(kv_value_bits=8),
    ],
)
def test_options_that_ranks_do_not_have_are_refused_by_name(options: ModelOptions) -> None:
    with pytest.raises(ServerError, match="cannot be used with a model that is split") as raised:
        refuse_set(options, REFUSED, "with a model that is split over ranks")
    named = raised.value.report.param
    assert named is not None
    assert getattr(options, named) != getattr(ModelOptions(), named)


def test_messages_are_heard_one_by_one_in_their_order() -> None:
    step = Step(1.5, (0, 0, 1, 7, 0, 0))
    hearing = Hearing(Said(encode([step, Budget(32)]), encode([Tokens([3, 4])]), encode([Close()])))
    assert hearing.next() == step
    assert hearing.expect(Budget).tokens == 32
    assert hearing.expect(Tokens).tokens == [3, 4]
    assert hearing.next() == Close()


def test_a_rank_that_needs_something_else_has_gone_astray() -> None:
    with pytest.raises(Astray, match="rank 0 said Budget where this rank needs Tokens"):
        Hearing(Said(encode([Budget(1)]))).expect(Tokens)
