"""Whisper's vocabularies, for folders that bring none."""

import pytest
from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES

from pippin.engines.whisper import whisper_tokenizer

TEXT = " Hello, world! naïve 日本語 \n 12345"


@pytest.mark.parametrize(
    ("multilingual", "languages", "size", "start", "first_time", "words"),
    [
        # Of OpenAI's tokenizer: the sizes of its models' embeddings, and ids that its documents name.
        (True, 99, 51865, 50258, 50364, [2425, 11, 1002, 0]),
        (True, 100, 51866, 50258, 50365, [2425, 11, 1002, 0]),
        (False, 99, 51864, 50257, 50363, [18435, 11, 995, 0]),
    ],
)
def test_ids_are_those_of_openai(
    multilingual: bool, languages: int, size: int, start: int, first_time: int, words: list[int]
) -> None:
    tokenizer = whisper_tokenizer(tuple(LANGUAGES)[:languages], multilingual=multilingual)
    assert len(tokenizer) == size
    names = ["<|startoftranscript|>", "<|0.00|>", "<|30.00|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [start, first_time, size - 1]
    assert tokenizer.encode(" Hello, world!", add_special_tokens=False) == words
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT
