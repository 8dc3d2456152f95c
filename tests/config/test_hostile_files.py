"""Whatever a YAML file, a variable or a change holds: settings, or one clear line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pippin.config.compat.servers import servers
from pippin.config.environment import read_variables
from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.config.options.declaration import options
from pippin.config.reload import change
from pippin.config.yaml_file import form_of, load_document, read_document

NAMES = [*options(), "models", "model_defaults", "server", "manager", "path", "model_path", "name", "options"]
KEYS = [term.name.rpartition(".")[2] for server in servers().values() for term in server.keys]
VARIABLES = [term.name for server in servers().values() for term in server.variables]

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
words = st.one_of(st.sampled_from([*NAMES, *KEYS]), st.text(max_size=8))
keys = st.one_of(words, words, words, st.integers(), st.none())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)
documents = st.dictionaries(words, values, max_size=6)


def one_line(error: ConfigError) -> None:
    assert str(error)
    assert "\n" not in str(error)


@given(document=documents)
@example(document={"model_defaults": {1: 2}})
@example(document={"models": [{None: 1, "path": "x"}]})
@example(document={"server": {"port": {}}, "models": [{"model_path": []}]})
@example(document={"models": [{"path": "x", "options": 3}]})
@example(document={"kv_bits": float("inf")})
def test_any_document_is_read_or_refused_in_one_line(document: dict[str, Any]) -> None:
    try:
        read_document(document, "file", form_of(document))
    except ConfigError as error:
        one_line(error)


@given(
    name=st.sampled_from([*VARIABLES, *(option.variable for option in options().values())]), text=st.text()
)
def test_any_variable_is_read_or_refused_in_one_line(name: str, text: str) -> None:
    try:
        read_variables({name: text}, None)
    except ConfigError as error:
        one_line(error)


@given(changes=documents)
def test_any_change_is_taken_or_refused_in_one_line(changes: dict[str, Any]) -> None:
    try:
        change(load((), {}), changes)
    except ConfigError as error:
        one_line(error)


@pytest.mark.parametrize(
    "text", ["a: !!python/object/apply:os.system [id]", "a: &a [*a]", "{" * 2000, "\x00"]
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Any, text: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_document(load_document(str(file)), "file", None)
    one_line(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "env: &a0 [1]\n" + "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        "servers: &a\n  x: *a\n",
    ],
    ids=["bomb", "circle"],
)
def test_a_file_whose_anchors_stand_for_billions_of_values_is_refused_at_once(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="with what its anchors repeat"):
        load_document(str(file))
