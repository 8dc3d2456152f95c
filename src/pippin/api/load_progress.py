"""What a stream that waits for its model is told meanwhile, as a comment that clients skip and people can read."""

from pippin.core.models import ModelState


def load_comment(states: list[ModelState], model: str) -> bytes:
    """A server-sent comment on where the load of a model stands; nothing where none goes on."""
    state = next((each for each in states if each.id == model), None)
    if state is None or state.stage is None:
        return b""
    match state.stage:
        case "waiting":
            doing = "waits until other models are done"
        case "weights" if state.progress is not None and state.progress[1]:
            done, total, _ = state.progress
            doing = f"has loaded {done * 100 // total} % of its weights"
        case "weights":
            doing = "loads its weights"
        case _:
            doing = "is starting"
    return f": the model {doing}\n\n".encode()
