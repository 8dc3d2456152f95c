"""Draws the shared event sequences in the words of OpenAI's two completion APIs.

`python -m tests.api.dialects.openai_golden` writes the golden files anew; look at the difference before keeping it.
"""

import json
from pathlib import Path
from typing import Any, Final

from pippin.api.dialects.base import AnyDialect, DecodeContext, Encoder, RunInfo
from pippin.api.dialects.chat.dialect import dialect as chat
from pippin.api.dialects.completions.dialect import dialect as completions
from pippin.core.completion import collect
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Failed, Finished
from tests.api.golden_events import SEQUENCES

FOLDER: Final = Path(__file__).parent / "golden"
RUN: Final = RunInfo(id="0123", created=1_700_000_000, model="model-a", fingerprint="fp_1")

MESSAGES: Final[Any] = [{"role": "user", "content": "Hi"}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "chat_completions": {
        "model": "model-a",
        "messages": MESSAGES,
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "completions": {
        "model": "model-a",
        "prompt": "The sky",
        "logprobs": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
}
DIALECTS: Final[dict[str, AnyDialect]] = {"chat_completions": chat, "completions": completions}


def encoder_of(name: str, events: list[Event], **fields: Any) -> Encoder:
    dialect = DIALECTS[name]
    choices = 1 + max((event.choice for event in events if isinstance(event, Finished)), default=0)
    body = json.dumps(BODIES[name] | {"n": choices} | fields).encode()
    return dialect.encoder(dialect.decode(body, DecodeContext()).shape, RUN)


def streamed(name: str, events: list[Event], **fields: Any) -> bytes:
    encoder = encoder_of(name, events, **fields)
    out = b""
    for event in events:
        match event:
            case Accepted():
                out += encoder.start([event])
            case Failed(error):
                out += encoder.failed(error)
            case _:
                out += encoder.event(event)
    return out + encoder.end()


def whole(name: str, events: list[Event], **fields: Any) -> bytes:
    try:
        return encoder_of(name, events, **fields).whole([collect(events)])
    except ServerError as error:
        return DIALECTS[name].error(error.report, RUN.id)


def drawn(name: str, events: list[Event]) -> str:
    return streamed(name, events).decode() + "\n== whole\n" + whole(name, events).decode() + "\n"


if __name__ == "__main__":
    for name in DIALECTS:
        (FOLDER / name).mkdir(exist_ok=True)
        for sequence, events in SEQUENCES.items():
            (FOLDER / name / f"{sequence}.txt").write_text(drawn(name, events))
