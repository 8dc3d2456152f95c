"""Answers are cut into sentences that are spoken while the rest is written."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.api.sockets.realtime.response import Voice, sentence_length
from pippin.core.errors import ServerError

LONGEST = 60


def spoken(pieces: list[str]) -> tuple[list[str], list[bytes]]:
    """What the speech model was given, and the sound that the client got: 48 bytes a character."""
    given_: list[str] = []
    sent: list[bytes] = []

    async def speak(text: str) -> AsyncIterator[bytes]:
        given_.append(text)
        yield bytes(48 * len(text))

    async def send(sound: str) -> None:
        sent.append(base64.b64decode(sound))

    async def run() -> None:
        voice = Voice(speak, LONGEST, send)
        for piece in pieces:
            voice.say(piece)
        await voice.finish()

    asyncio.run(run())
    return given_, sent


def test_whole_sentences_are_spoken() -> None:
    texts, _ = spoken(["This is one whole sentence. And", " here is one more", " of them."])
    assert texts == ["This is one whole sentence.", "And here is one more of them."]


def test_short_sentences_are_spoken_together() -> None:
    assert spoken(["Yes. No. Perhaps, if it must be. Well."])[0] == [
        "Yes. No. Perhaps, if it must be.",
        "Well.",
    ]


def test_what_has_no_letters_is_not_given_to_the_model() -> None:
    assert spoken(["...\n\n***\n\n"])[0] == []


def test_a_decimal_point_ends_no_sentence() -> None:
    assert sentence_length("The value of the number pi is 3.14159, about", LONGEST) is None


@given(st.lists(st.text(st.sampled_from("ab .!?\n。"), max_size=40), max_size=12))
def test_nothing_is_lost_and_no_piece_is_too_long(pieces: list[str]) -> None:
    texts, sent = spoken(pieces)
    letters = [letter for letter in "".join(pieces) if letter.isalnum()]
    assert [letter for letter in "".join(texts) if letter.isalnum()] == letters
    assert all(0 < len(text) <= LONGEST for text in texts)
    assert sum(map(len, sent)) == 48 * sum(map(len, texts))


def test_a_model_that_fails_is_told_at_the_end() -> None:
    async def speak(text: str) -> AsyncIterator[bytes]:
        raise ServerError("load_failed", "No voice.")
        yield b""

    async def send(sound: str) -> None:
        raise AssertionError

    async def run() -> None:
        voice = Voice(speak, LONGEST, send)
        voice.say("This is one whole sentence. And more.")
        await voice.finish()

    with pytest.raises(ServerError, match="No voice"):
        asyncio.run(run())
