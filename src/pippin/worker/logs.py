"""The worker's log lines, with the request's id: written to stderr, which the API server reads."""

import json
import logging
import sys

from pippin.core import logs
from pippin.core.models import WorkerSpec
from pippin.worker.loop import request_id


class WorkerFormatter(logging.Formatter):
    """Formats a record as one line of JSON; the API server logs it again at its level, in its own format."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "name": record.name, "message": record.getMessage()}
        request = request_id.get()
        if request is not None:
            line["request"] = request
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(spec: WorkerSpec) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WorkerFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    logs.set_level(spec.log_level)
