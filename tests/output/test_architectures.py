"""A format that no chat template tells of is known by the architecture of the model."""

import pytest

from pippin.output.formats import detect

GEMMA = "{% for message in messages %}<start_of_turn>{{ message.role }}\n{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "architecture", "name"),
    [
        (GEMMA, "gemma3", "gemma3"),
        (GEMMA, "gemma3_text", "gemma3"),
        (GEMMA, "llama", None),
        (GEMMA, None, None),
        # A template with tools of its own that no format is known for.
        (GEMMA + "{{ tools }}", "gemma3", None),
    ],
)
def test_calls_of_gemma_3_are_known_by_its_architecture(
    template: str, architecture: str | None, name: str | None
) -> None:
    found = detect(template, architecture).tools
    assert (None if found is None else found.name) == name
