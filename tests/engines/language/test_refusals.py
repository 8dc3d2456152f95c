"""Options that a way of running a model does not have are refused by name."""

from typing import Any

import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.library.fields import MODEL, WITHOUT
from pippin.engines.refusals import refuse_set


@pytest.mark.parametrize(
    "asked", [{"mtp": True}, {"kv_bits": 4}, {"adapters": {"a": "b"}}, {"thinking_budget": 0}]
)
def test_what_the_librarys_loop_does_not_follow_is_refused(asked: dict[str, Any]) -> None:
    """A value counts by being another than the default, also where it is 0."""
    refuse_set(ModelOptions(), WITHOUT, f"with {MODEL}")
    with pytest.raises(ServerError, match=f"cannot be used with {MODEL}. Start without it") as refused:
        refuse_set(ModelOptions(**asked), WITHOUT, f"with {MODEL}")
    assert refused.value.report.param == next(iter(asked))
