"""The settings of a new connection: the models that are served decide whether it hears and speaks."""

from pippin.api.answers.answer import run_info
from pippin.api.sockets.realtime.calls import Calls
from pippin.api.sockets.realtime.session import Kind, ServerVad, Settings, Transcription
from pippin.api.sockets.realtime.turns import can_detect, require_detection
from pippin.core.errors import ServerError
from pippin.core.models import ModelKind


async def check_served(
    calls: Calls, settings: Settings, path: str, before: Transcription | None = None
) -> None:
    """Raises `ServerError` if no model here can serve the settings. `before` is the transcription checked earlier."""
    if settings.turn_detection is not None:
        require_detection(f"{path}.audio.input.turn_detection")
    asked = settings.transcription
    if asked is not None and asked.model is not None and asked != before:
        await _require(
            calls,
            asked.model,
            "transcription",
            f"{path}.audio.input.transcription.model",
            "leave `model` out",
        )
    if settings.speaks:
        await _require(calls, settings.speech_model, "speech", f"{path}.output_modalities", 'send ["text"]')


async def _require(calls: Calls, model: str, kind: ModelKind, param: str, instead: str) -> None:
    if await calls.find(model, kind) is None:
        raise ServerError(
            "model_not_found",
            f"No {kind} model is served here as {model!r}; serve one beside the language model, or {instead}.",
            param,
        )


async def opened(calls: Calls, kind: Kind, model: str) -> tuple[Settings, bool]:
    """The settings of a new session, and whether its language model hears. Raises `ServerError`."""
    transcribes = await calls.find("default", "transcription") is not None
    detects = ServerVad() if can_detect() else None
    if kind == "transcription":
        return Settings(kind=kind, model=model, modalities=("text",), turn_detection=detects), False
    service = calls.api.service
    run = await run_info(service, model, calls.exchange, "language")
    if not run.known:
        await service.find(model, "language")
    info = await service.find(model, "language")
    hears = info.capabilities.audio
    speaks = await calls.find("default", "speech") is not None
    return (
        Settings(
            kind=kind,
            model=model,
            modalities=("audio",) if speaks else ("text",),
            turn_detection=detects if hears or transcribes else None,
        ),
        hears,
    )
