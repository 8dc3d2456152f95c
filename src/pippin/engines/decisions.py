"""The engine of decision models: named questions about a state, answered by the models' own scoring in mlx-vlm."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Decided, Event
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Decide, Task
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.device import loading
from pippin.engines.language.upstream import reading

REFUSALS = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What models raise for questions that they cannot read."""


Predict = Callable[[Any, Any], dict[str, Any]]
"""mlx-vlm's `predict` of a loaded model: its answers to questions about a state."""


class DecisionPreparer:
    def __init__(self, spec: WorkerSpec) -> None:
        self.info = spec.info

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        assert isinstance(task, Decide)
        return BlockingJob[Predict](id, Accepted(prompt_tokens=0), partial(decide, task))


open_preparer = DecisionPreparer


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[Predict]:
    """Raises `ServerError("load_failed")` where mlx-vlm is not installed, or its model decides nothing."""
    folder = Path(spec.info.path or "")
    options = convert(spec.options, ModelOptions)

    def load() -> Predict:
        try:
            from mlx_vlm.decision import predict
            from mlx_vlm.utils import load_processor
        except ImportError as error:
            message = f"Decision models are mlx-vlm's: {install_command('vision')}"
            raise ServerError("load_failed", message) from error
        with loading(spec):
            model = reading.load_model(folder)
        if not getattr(model, "decision_types", ()):
            raise ServerError(
                "load_failed", f"{spec.info.id} decides nothing: mlx-vlm's model has no decisions."
            )
        processor = load_processor(folder, False, trust_remote_code=options.trust_remote_code)
        return partial(predict, model, processor)

    return BlockingEngine(load)


def decide(task: Decide, predict: Predict, call: Call) -> None:
    """Run a request on the model's thread. Raises `ServerError` for questions that the model cannot read."""
    state, questions = json.loads(task.state), json.loads(task.questions)
    try:
        found = predict(state, questions)
    except REFUSALS as error:
        raise ServerError("invalid_request", f"The model cannot decide this: {error}", "questions") from error
    tokens = int(found.get("usage", {}).get("input_tokens", 0))
    call.emit(Decided(answers=json.dumps(found["answers"], ensure_ascii=False), used_tokens=tokens))
