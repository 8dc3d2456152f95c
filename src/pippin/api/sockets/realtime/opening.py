"""What a new connection is set to: which models there are decides whether it hears and speaks."""

from pippin.api.answers.answer import run_info
from pippin.api.sockets.realtime.calls import Calls
from pippin.api.sockets.realtime.session import Kind, ServerVad, Settings
from pippin.api.sockets.realtime.turns import can_detect


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
