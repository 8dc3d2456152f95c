"""A sampling parameter is added in the files that its recipe names, and in no other."""

from pathlib import Path
from typing import Any

import pytest

from tests.recipes.overlay import Overlay, files_of_recipe

TABLE = "src/pippin/core/parameters.json"
PARAMETERS = "src/pippin/core/parameters.py"
REQUESTS = "src/pippin/core/requests.py"
FILTERS = "src/pippin/engines/language/sampling/sampler.py"
FIELDS = "src/pippin/api/dialects/shared/engine_fields.py"
OPTIONS = "src/pippin/config/options/model.py"

PARAMETER = """    "name": "best_gap", "low": 0, "high": 100, "neutral": 0,
    "help": "Keep logits within this distance of the highest; 0 is off."
  },
  {
"""
FILTER = '''def best_gap(x: mx.array, gap: mx.array) -> mx.array:
    """Keep what lies within `gap` of the best logit. Neutral: 0."""
    return mx.where((x >= mx.max(x, axis=-1, keepdims=True) - gap) | (gap <= 0), x, OUT)


'''
FIELD = "    best_gap: Annotated[float, p.BEST_GAP.wire_meta] | None = None\n"
OPTION = "    best_gap: Annotated[float, default_of(p.BEST_GAP)] | None = None\n"

USE = """
import json
import mlx.core as mx
import msgspec
from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.config.options.declaration import options
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Sampling
from pippin.engines.language.prompt.preparer import check_numbers
from pippin.engines.language.sampling.sampler import BatchSampler
from pippin.service.service import merge_sampling

def decoded(gap):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "best_gap": gap}
    [request] = ChatDialect().decode(json.dumps(body).encode(), DecodeContext()).requests
    return request

def refusal(act):
    try:
        act()
    except ServerError as error:
        return error.report.param
    return None

class Words:
    size, eos, line_ends, asked = 8, (), (), OfEveryAnswer()

def drawn(sampling):
    sampler = BatchSampler(Words())
    for seed in range(200):
        sampler.join(sampling, seed=seed, prompt=[1], logprobs=None)
    logits = mx.array([[0.0, 1, 2, 3, 4, 5, 6, 7]] * 200) / 4
    return sorted(set(sampler.sample(logits).tokens.tolist()))

asked = decoded(0.5).sampling
info = ModelInfo(id="m", kind="language")
print(json.dumps({
    "asked": asked.best_gap,
    "refused on the wire": refusal(lambda: decoded(-1)),
    "refused by the model": refusal(
        lambda: check_numbers(msgspec.structs.replace(decoded(1), sampling=Sampling(best_gap=1e9)), Words())
    ),
    "flag": options()["best_gap"].flag,
    "default": merge_sampling(Sampling(), ModelOptions(best_gap=0.25), info).best_gap,
    "drawn": drawn(msgspec.structs.replace(asked, temperature=1.0)),
    "drawn without": drawn(Sampling(temperature=1.0)),
}))
"""


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    overlay = Overlay(tmp_path_factory.mktemp("recipe"))
    overlay.insert(TABLE, '    "name": "seed"', PARAMETER)
    overlay.insert(PARAMETERS, "    SEED,", "    BEST_GAP,\n")
    overlay.insert(REQUESTS, "    logit_bias:", "    best_gap: float | None = None\n")
    overlay.insert(FILTERS, "def weights(", FILTER)
    overlay.insert(
        FILTERS,
        '    Filter("logits", (p.TOP_K,)',
        '    Filter("logits", (p.BEST_GAP,), lambda x, gap, _: best_gap(x, gap)),\n',
    )
    overlay.insert(FIELDS, "    logit_bias:", FIELD)
    overlay.insert(OPTIONS, "    seed:", OPTION)
    return overlay


@pytest.fixture(scope="module")
def used(overlay: Overlay) -> dict[str, Any]:
    found: dict[str, Any] = overlay.run(USE)
    return found


def test_the_recipe_names_the_files_that_are_touched(overlay: Overlay) -> None:
    assert overlay.touched == files_of_recipe("a sampling parameter")
    assert all((Path(__file__).parents[2] / path).is_file() for path in overlay.touched)


def test_a_client_sets_the_parameter_within_its_range(used: dict[str, Any]) -> None:
    assert used["asked"] == 0.5
    assert used["refused on the wire"] == "best_gap"
    assert used["refused by the model"] == "best_gap"


def test_an_operator_sets_its_default(used: dict[str, Any]) -> None:
    assert used["flag"] == "--best-gap"
    assert used["default"] == 0.25


def test_the_filter_narrows_what_is_drawn(used: dict[str, Any]) -> None:
    assert used["drawn"] == [5, 6, 7]
    assert used["drawn without"] == list(range(8))
