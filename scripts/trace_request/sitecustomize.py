"""Imported by each Python process of the traced server at its start: records the lines of Pippin that it executes.

The interpreter imports a module of this name by itself where its folder is in PYTHONPATH. Recording goes on while the
file `recording` is in the folder that `PIPPIN_TRACE_FOLDER` names; when that file is gone, each process writes what it
recorded to `<pid>.json` there, as a mapping from source files to sorted line numbers.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(os.environ["PIPPIN_TRACE_FOLDER"])
PACKAGE = f"{Path(__file__).resolve().parents[2] / 'src' / 'pippin'}{os.sep}"
LOOK_EVERY = 0.01  # seconds


class Recorder:
    def __init__(self) -> None:
        self.on = False
        self.lines: dict[str, set[int]] = {}

    def of_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The tracer of a new frame. Frames of Pippin have one while nothing is recorded too, for some never end."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        return self.of_line(frame, event, argument)

    def of_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.on and event == "line":
            self.lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return self.of_line

    def watch(self) -> None:
        """Switch recording on and off as the file says; the body of a thread of its own."""
        while True:
            wanted = (FOLDER / "recording").exists()
            if self.on and not wanted:
                found = {name.removeprefix(PACKAGE): sorted(lines) for name, lines in self.lines.items()}
                self.lines = {}
                (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(found))
            self.on = wanted
            time.sleep(LOOK_EVERY)


recorder = Recorder()
threading.Thread(target=recorder.watch, daemon=True).start()
threading.settrace(recorder.of_call)
sys.settrace(recorder.of_call)
