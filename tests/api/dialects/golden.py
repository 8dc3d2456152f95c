"""Draws the golden event sequences in a dialect, and writes the files that tests compare with.

    python -m tests.api.dialects.golden

writes them anew; look at the difference before you commit it.
"""

from pathlib import Path

import msgspec

from pippin.api.dialects.base import AnyDialect, DecodeContext, Encoder, RunInfo
from pippin.api.dialects.gemini.dialect import GeminiDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses.answer import ResponseAnswer, ResponsesEncoder, ResponseShape
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.completion import collect
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Failed
from tests.api.golden_events import SEQUENCES

FOLDER = Path(__file__).parent / "golden"


class EndingAtOnce(ResponsesDialect):
    """The dialect with a fixed time at which responses end."""

    def encoder(self, shape: ResponseShape, run: RunInfo) -> ResponsesEncoder:
        return EndedAtOnce(shape, run)


class EndedAtOnce(ResponsesEncoder):
    def response(self) -> ResponseAnswer:
        found = super().response()
        ended = None if found.completed_at is None else 1_700_000_001
        return msgspec.structs.replace(found, completed_at=ended)


RUN = RunInfo(id="0f1e2d", created=1_700_000_000, model="golden", fingerprint="fp")
SPOKEN: dict[str, tuple[AnyDialect, bytes]] = {
    "responses": (
        EndingAtOnce(),
        b'{"model":"golden","input":"Hi","include":["message.output_text.logprobs"]}',
    ),
    "messages": (
        MessagesDialect(),
        b'{"model":"golden","max_tokens":64,"messages":[{"role":"user","content":"Hi"}]}',
    ),
    "gemini": (
        GeminiDialect("events"),
        b'{"contents":[{"parts":[{"text":"Hi"}]}],"generationConfig":{"responseLogprobs":true,'
        b'"candidateCount":2,"thinkingConfig":{"includeThoughts":true}}}',
    ),
}


def encoder_of(name: str) -> Encoder:
    dialect, body = SPOKEN[name]
    return dialect.encoder(dialect.decode(body, DecodeContext()).shape, RUN)


def streamed(name: str, events: list[Event]) -> bytes:
    accepted, *others = events
    assert isinstance(accepted, Accepted)
    encoder = encoder_of(name)
    drawn = (encoder.failed(e.error) if isinstance(e, Failed) else encoder.event(e) for e in others)
    return encoder.start([accepted]) + b"".join(drawn) + encoder.end()


def whole(name: str, events: list[Event]) -> bytes:
    """The answer in one piece, or the error's body."""
    try:
        return encoder_of(name).whole([collect(events)])
    except ServerError as error:
        return SPOKEN[name][0].error(error.report, RUN.id)


def drawn(name: str, events: list[Event]) -> str:
    return f"{streamed(name, events).decode()}==== whole\n{whole(name, events).decode()}\n"


def main() -> None:
    for name in SPOKEN:
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for sequence, events in SEQUENCES.items():
            (FOLDER / name / f"{sequence}.txt").write_text(drawn(name, events))


if __name__ == "__main__":
    main()
