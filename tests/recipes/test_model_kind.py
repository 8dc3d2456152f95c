"""The recipe of a model kind in CONTRIBUTING.md, carried out: a new kind in the files that it names, and no other."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import mlx.core as mx
import pytest

from tests.running_server import ROOT, running_server

KIND: Final = "letters"
EXAMPLE: Final = Path(__file__).parent / "letter_counting"

WRITTEN: Final = {
    f"src/pippin/engines/{KIND}.py": "engine.py",
    f"src/pippin/api/kinds/{KIND}.py": "endpoint.py",
}
"""New files, and those of the example that they are."""

CHANGED: Final = {
    "src/pippin/core/models.py": [("ModelKind = Literal[", f'ModelKind = Literal["{KIND}", ')],
    "src/pippin/core/tasks.py": [
        (
            "Task = (\n",
            f'''class CountLetters(BaseTask, frozen=True, tag=True):
    model_kind = "{KIND}"
    verb = "count letters"

    text: str


Task = (
    CountLetters |
''',
        )
    ],
    "src/pippin/core/events.py": [
        (
            "Event = Accepted",
            """class LettersCounted(Ending, frozen=True, tag=True):
    count: int
    used_tokens: int


Event = LettersCounted | Accepted""",
        )
    ],
    "src/pippin/catalog/kinds.py": [
        (
            '    model_type = text(config.get("model_type")) or ""\n',
            f'''    model_type = text(config.get("model_type")) or ""
    if model_type == "letter_counter":
        return "{KIND}"
''',
        )
    ],
}
"""Files of Pippin that change: what stands there, and what takes its place."""


def recipe() -> str:
    """The section of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition("## Recipe: a model kind\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the changed source, with a model of the new kind and a language model."""
    home = tmp_path_factory.mktemp("letters")
    shutil.copytree(ROOT / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, own in WRITTEN.items():
        assert not (home / name).exists()
        shutil.copy(EXAMPLE / own, home / name)
    for name, changes in CHANGED.items():
        text = (home / name).read_text()
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        (home / name).write_text(text)
    model = home / "vowels"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "letter_counter", "letters": "aeiou"}))
    mx.save_safetensors(str(model / "model.safetensors"), {"weight": mx.zeros(1)})
    with running_server(home, str(model), source=home / "src") as found:
        yield found


def test_the_recipe_names_the_files_that_are_touched_and_no_other() -> None:
    named = {name.replace("<kind>", KIND) for name in re.findall(r"`(src/pippin/[\w/<>]+\.py)`", recipe())}
    assert named == {*WRITTEN, *CHANGED}


def test_a_model_of_the_new_kind_is_found_loaded_and_asked(address: str) -> None:
    reply = httpx.post(f"{address}/v1/letters", json={"model": "vowels", "text": "every vowel"})
    assert (reply.status_code, reply.json()) == (200, {"model": "vowels", "count": 4})
    [listed] = httpx.get(f"{address}/v1/models").json()["data"]
    assert (listed["id"], listed["kind"]) == ("vowels", KIND)


def test_its_contract_is_kept_and_shown_as_those_of_other_kinds_are(address: str) -> None:
    refused = httpx.post(f"{address}/v1/letters", json={"text": "a", "alphabet": "xyz"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "alphabet"
    operation = httpx.get(f"{address}/openapi.json").json()["paths"]["/v1/letters"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "LettersRequest"
    )


def test_tasks_of_other_kinds_are_refused_by_name(address: str) -> None:
    body = {"model": "vowels", "messages": [{"role": "user", "content": "Hi"}]}
    refused = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "'vowels' is of kind letters and can't generate text" in refused.json()["error"]["message"]


def test_what_it_used_counts_for_the_caller(address: str) -> None:
    before = httpx.get(f"{address}/v1/status").json()["total_prompt_tokens"]
    httpx.post(f"{address}/v1/letters", json={"text": "every vowel"})
    after = httpx.get(f"{address}/v1/status").json()["total_prompt_tokens"]
    assert after - before == len("every vowel")
