"""What the clients of a soak ask for: every kind, long and short, whole and streamed, alone and in conversations."""

import base64
import json
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
    """One request. A form is sent where there is a `file`; where there are `events`, they are sent over a WebSocket;
    a `batch` holds the lines of a batch."""

    kind: str
    path: str
    body: dict[str, Any]
    file: bytes | None = None
    events: tuple[dict[str, Any], ...] = ()
    batch: bytes = b""

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Mix:
    """Draws wishes. A client asks one model several times, as people do: each load is followed by work, and still there
    are several swaps a minute."""

    def __init__(self, kinds: frozenset[str], seed: int) -> None:
        from tests.engines.language.vision.tiny_vision_models import picture  # imports mlx

        self.random = random.Random(seed)
        kinds |= {"agent", "neighbours", "sockets", "batch"}
        self._kinds = [kind for kind in KINDS if kind.name in kinds]
        self._pictures = [
            "data:image/png;base64," + base64.b64encode(picture(64 + 16 * i, 96, i)).decode()
            for i in range(PICTURES)
        ]
        self._recording = SPEECH.read_bytes()

    def several(self) -> list[Wish]:
        """What a client asks of one model before it turns to something else."""
        [kind] = self.random.choices(self._kinds, [kind.weight for kind in self._kinds])
        model = self.random.choice(kind.models)
        return [kind.draw(self, model) for _ in range(self.random.randint(1, 20))]

    def chat(self, model: str) -> Wish:
        draw = self.random
        body = self._generation(model, [self._said("user", (20, 60, 200, 2500))])
        body["n"] = draw.choice((1, 1, 1, 2))
        if model == ADAPTED and draw.random() < 0.5:
            body["adapter_path"] = draw.choice([*ADAPTERS])
        if draw.random() < 0.2:
            schema = {"name": "answer", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 24}
        return Wish("chat", CHAT, body)

    def agent(self, model: str) -> Wish:
        """A conversation with late system messages, in either API."""
        turns = [self._said("system", (100,))]
        for _ in range(self.random.randint(1, 4)):
            turns += [
                self._said("user", (60, 200)),
                self._said("assistant", (60,)),
                self._said("system", (40,)),
            ]
        turns.append(self._said("user", (60,)))
        body = self._generation(model, turns)
        if self.random.random() < 0.5:
            return Wish("agent", CHAT, body)
        return Wish(
            "agent", "/v1/messages", {key: body[key] for key in ("model", "messages", "max_tokens", "stream")}
        )

    def neighbours(self, model: str) -> Wish:
        """A chat by Ollama's API or by LM Studio's."""
        body = self._generation(model, [self._said("user", (20, 200))])
        most, stream = body["max_tokens"], body["stream"]
        if self.random.random() < 0.5:
            options = {"num_predict": most, "num_ctx": 4096}
            asked = {"model": model, "messages": body["messages"], "stream": stream, "options": options}
            return Wish("ollama", "/api/chat", asked)
        return Wish("lm studio", "/api/v0/chat/completions", body)

    def sockets(self, model: str) -> Wish:
        """Two turns of Responses on one connection."""
        words, most = self._words((20, 200)), self.random.choice((1, 8, 60))
        turn = {"type": "response.create", "model": model, "max_output_tokens": most, "store": False}
        turns = [turn | {"input": words}, turn | {"input": self._words((20,))}]
        return Wish("responses socket", "/v1/responses", {}, events=tuple(turns))

    def batch(self, model: str) -> Wish:
        lines = [
            {
                "custom_id": str(number),
                "method": "POST",
                "url": CHAT,
                "body": self._generation(model, [self._said("user", (20, 200))]) | {"stream": False},
            }
            for number in range(self.random.randint(1, 4))
        ]
        for line in lines:
            del line["body"]["return_progress"]  # of streams
        return Wish("batch", CHAT, {}, batch="\n".join(map(json.dumps, lines)).encode())

    def vision(self, model: str) -> Wish:
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": self.random.choice(self._pictures)}}
            for _ in range(self.random.randint(1, 3))
        ]
        parts.append({"type": "text", "text": self._words((20, 200))})
        return Wish("vision", CHAT, self._generation(model, [{"role": "user", "content": parts}]))

    def embeddings(self, model: str) -> Wish:
        texts = [self._words((5, 80, 300)) for _ in range(self.random.randint(1, 16))]
        return Wish("embeddings", "/v1/embeddings", {"model": model, "input": texts})

    def speech(self, model: str) -> Wish:
        form = self.random.choice(("wav", "mp3", "opus", "pcm"))
        body = {"model": model, "input": "hello there.", "voice": "default", "response_format": form}
        return Wish(
            "speech", "/v1/audio/speech", {**body, "seed": 5, "max_tokens": self.random.choice((4, 24))}
        )

    def transcription(self, model: str) -> Wish:
        stream = self.random.random() < 0.5
        body = {
            "model": model,
            "language": "en",
            "temperature": "1.0",
            **({"stream": "true"} if stream else {}),
        }
        return Wish("transcription", "/v1/audio/transcriptions", body, self._recording)

    def images(self, model: str) -> Wish:
        body = {"model": model, "prompt": self._words((20,)), "size": "64x64", "steps": 3}
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


@dataclass(frozen=True)
class Kind:
    """`weight` says how often clients turn to it."""

    name: str
    weight: int
    models: tuple[str, ...]
    draw: Callable[[Mix, str], Wish]


KINDS: Final = (
    Kind("chat", 10, LANGUAGE, Mix.chat),
    Kind("agent", 4, LANGUAGE, Mix.agent),
    Kind("neighbours", 4, LANGUAGE, Mix.neighbours),
    Kind("sockets", 3, LANGUAGE, Mix.sockets),
    Kind("batch", 1, LANGUAGE, Mix.batch),
    Kind("embeddings", 3, (EMBEDDER,), Mix.embeddings),
    Kind("vision", 4, (VISION,), Mix.vision),
    Kind("speech", 2, (SPEAKING,), Mix.speech),
    Kind("transcription", 2, (HEARING,), Mix.transcription),
    Kind("images", 1, (PAINTING,), Mix.images),
)
