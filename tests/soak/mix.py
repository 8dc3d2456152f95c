"""What the clients of a soak ask for: every kind, long and short, whole and streamed, alone and in conversations."""

import base64
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.running_server import ROOT
from tests.soak.models import (
    ADAPTED,
    ADAPTERS,
    EMBEDDER,
    HEARING,
    LANGUAGE,
    PAINTING,
    SPEAKING,
    VISION,
)

SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
SHARED: Final = "A prompt that many begin with, so that the prefix cache has something to find. "
PICTURES: Final = 12  # different ones, so that some are found in the cache of features and some are not
SPEECH: Final = ROOT / "tests" / "data" / "speech.flac"
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True)
class Wish:
    """One request. A form is sent where there is a `file`."""

    kind: str
    path: str
    body: dict[str, Any]
    file: bytes | None = None

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Mix:
    """Draws wishes. A client asks some of the same kind one after the other, as people do: each model's load is
    followed by work, and still there are several swaps a minute."""

    def __init__(self, kinds: frozenset[str], seed: int) -> None:
        from tests.engines.language.vision.tiny_vision_models import picture  # imports mlx

        self.random = random.Random(seed)
        drawers: dict[str, tuple[int, Callable[[], Wish]]] = {
            "chat": (10, self._chat),
            "agent": (4, self._agent),
            "embeddings": (3, self._embeddings),
            "vision": (4, self._vision),
            "speech": (2, self._speech),
            "transcription": (2, self._transcription),
            "images": (1, self._images),
        }
        kinds |= {"agent"}
        self._drawers = [draw for name, (_, draw) in drawers.items() if name in kinds]
        self._weights = [weight for name, (weight, _) in drawers.items() if name in kinds]
        self._pictures = [
            "data:image/png;base64," + base64.b64encode(picture(64 + 16 * i, 96, i)).decode()
            for i in range(PICTURES)
        ]
        self._recording = SPEECH.read_bytes()

    def several(self) -> list[Wish]:
        """What a client asks before it turns to something else."""
        [draw] = self.random.choices(self._drawers, self._weights)
        return [draw() for _ in range(self.random.randint(1, 8))]

    def _chat(self) -> Wish:
        draw = self.random
        model = draw.choice(LANGUAGE)
        body = self._generation(model, [self._said("user", (20, 60, 200, 2500))])
        body["n"] = draw.choice((1, 1, 1, 2))
        if model == ADAPTED and draw.random() < 0.5:
            body["adapter_path"] = draw.choice([*ADAPTERS])
        if draw.random() < 0.2:
            schema = {"name": "answer", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 24}
        return Wish("chat", CHAT, body)

    def _agent(self) -> Wish:
        """A conversation with late system messages, in either API."""
        turns = [self._said("system", (100,))]
        for _ in range(self.random.randint(1, 4)):
            turns += [
                self._said("user", (60, 200)),
                self._said("assistant", (60,)),
                self._said("system", (40,)),
            ]
        turns.append(self._said("user", (60,)))
        body = self._generation(self.random.choice(LANGUAGE), turns)
        if self.random.random() < 0.5:
            return Wish("agent", CHAT, body)
        return Wish(
            "agent", "/v1/messages", {key: body[key] for key in ("model", "messages", "max_tokens", "stream")}
        )

    def _vision(self) -> Wish:
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": self.random.choice(self._pictures)}}
            for _ in range(self.random.randint(1, 3))
        ]
        parts.append({"type": "text", "text": self._words((20, 200))})
        return Wish("vision", CHAT, self._generation(VISION, [{"role": "user", "content": parts}]))

    def _embeddings(self) -> Wish:
        texts = [self._words((5, 80, 300)) for _ in range(self.random.randint(1, 16))]
        return Wish("embeddings", "/v1/embeddings", {"model": EMBEDDER, "input": texts})

    def _speech(self) -> Wish:
        form = self.random.choice(("wav", "mp3", "opus", "pcm"))
        body = {"model": SPEAKING, "input": "hello there.", "voice": "default", "response_format": form}
        return Wish(
            "speech", "/v1/audio/speech", {**body, "seed": 5, "max_tokens": self.random.choice((4, 24))}
        )

    def _transcription(self) -> Wish:
        stream = self.random.random() < 0.5
        body = {
            "model": HEARING,
            "language": "en",
            "temperature": "1.0",
            **({"stream": "true"} if stream else {}),
        }
        return Wish("transcription", "/v1/audio/transcriptions", body, self._recording)

    def _images(self) -> Wish:
        body = {"model": PAINTING, "prompt": self._words((20,)), "size": "64x64", "steps": 3}
        return Wish("images", "/v1/images/generations", body)

    def _generation(self, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        draw = self.random
        stream = draw.random() < 0.5
        return {
            "model": model,
            "messages": messages,
            "max_tokens": draw.choice((1, 8, 60)),
            "stream": stream,
            "return_progress": stream and draw.random() < 0.3,
            "temperature": draw.choice((0.0, 1.0)),
        }

    def _said(self, role: str, lengths: tuple[int, ...]) -> dict[str, Any]:
        return {"role": role, "content": self._words(lengths)}

    def _words(self, lengths: tuple[int, ...]) -> str:
        letters = "".join(self.random.choices("abcdefgh ij klmno ", k=self.random.choice(lengths)))
        return (SHARED if self.random.random() < 0.5 else "") + letters
